"""Measuring how fast a model decodes (`lantern bench`), and choosing settings by that (`lantern tune`)."""
