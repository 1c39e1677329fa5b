"""Checkpoints: reading, writing and verifying model folders."""
