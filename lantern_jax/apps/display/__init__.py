"""Pictures for people: their files, and an animation of two decodings."""
