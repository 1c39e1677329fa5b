"""What programs say on a terminal, and their standard streams."""
