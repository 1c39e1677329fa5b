"""Networks, their configs, and the kinds of drafters."""
