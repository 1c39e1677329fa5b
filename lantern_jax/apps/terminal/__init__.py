"""Printed lines and progress, standard streams, and locks between processes."""
