"""Measuring how fast a model decodes (`bench`), choosing settings by that (`tune`), and trying targets."""
