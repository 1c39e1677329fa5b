"""Devices: the mesh that a model lies on, several machines, compiled programs on the disk."""
