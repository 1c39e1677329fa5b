"""Paints landscapes by rule: the built-in data set that the demo is trained on."""
