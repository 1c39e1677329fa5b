"""Checkpoints: reading, writing, verifying and converting model folders."""
