"""Pictures for people: their files, an overlay of what was accepted, and an animation of two decodings."""
