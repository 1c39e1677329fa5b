"""Rich's console for texts that may come from a file: they are no markup, and nothing in them steers the terminal.

A text of several lines of our own is given as ``rich.text.Text``, which is shown as it is.
"""

from typing import Any

import rich.console
from rich.text import Text

from lantern_jax.io import errors


class Console(rich.console.Console):
    """A console that shows every ``str``, cells of tables too, as ``errors.printable`` does."""

    def __init__(self, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Makes rich's text of every ``str`` that it is given."""
        return super().render_str(errors.printable(text), **options)
