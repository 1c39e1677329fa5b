"""The ``lantern`` command: one module a subcommand.

Parts that take long to import are imported once the arguments are known to be right.
"""
