"""Lines that commands print. A text may come from a file or be its name: nothing in one steers the terminal.

``console`` has the same for tables.
"""

import sys

from lantern_jax.io import errors


def say(line: str, *, error: bool = False) -> None:
    """Prints a line to stdout, or stderr, as ``errors.printable`` shows it."""
    print(errors.printable(line), file=sys.stderr if error else sys.stdout, flush=True)
