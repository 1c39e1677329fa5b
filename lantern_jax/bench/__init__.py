"""How fast decoding is, measured side by side."""
