"""Acceptance rules with an idea of their own, and all rules by name."""
