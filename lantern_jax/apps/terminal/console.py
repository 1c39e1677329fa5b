"""Rich's console for texts that may come from a file: they are not markup, and nothing in them steers the terminal.

A text of our own with several lines is given as ``rich.text.Text``, which is shown as it is.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import rich.console
from rich.table import Table
from rich.text import Text

from lantern_jax.apps.terminal import terminal
from lantern_jax.io import errors


class Console(rich.console.Console):
    """A console that shows every ``str``, table cells included, as ``errors.printable`` does."""

    def __init__(self, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Makes a rich text of every ``str`` that it is given, escaped."""
        return super().render_str(errors.printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as rich does, with the line about work out of the way."""
        with terminal.hidden():
            super().print(*objects, **options)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> Table:
    """Makes a table whose first column names the row, folding long names; the others are numbers.

    Args:
        options: of rich's ``Table``.
    """
    made = Table(**{"title_justify": "left", "caption_justify": "left"} | options)
    made.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        made.add_column(head, justify="right")
    for row in rows:
        made.add_row(*row)
    return made
