"""Tensor files of others: what converters and metrics read."""
