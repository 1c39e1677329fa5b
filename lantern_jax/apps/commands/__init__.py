"""The ``lantern`` command: one module per subcommand.

Modules that are slow to import are imported only once the arguments have been checked.
"""
