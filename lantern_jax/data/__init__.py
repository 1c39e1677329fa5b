"""Training data: procedural landscapes with captions, folders of pictures, and the prompt vocabulary."""
