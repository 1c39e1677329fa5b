"""What a notebook gets without asking: a bar while pictures are decoded, and compiled programs that are kept."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.engine.generation import Progress


def is_notebook() -> bool:
    """Tells whether this process is the kernel of a notebook, Colab's too."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(find and find(), "kernel", None) is not None


def keep_programs_in_notebooks() -> None:
    """Makes JAX keep compiled programs if this is a notebook: kernels are started again and again."""
    if is_notebook():
        keep_compiled_programs()


@contextlib.contextmanager
def bar(count: int) -> Iterator[Callable[[Progress], None]]:
    """Yields a function that shows below a notebook's cell how far ``count`` pictures are, until they are done."""
    from IPython.display import HTML, display

    shown: Any = display(HTML(_line("", f"{count} picture(s); a first call also compiles")), display_id=True)

    def show(now: Progress) -> None:
        left = (now.total - now.tokens) * now.seconds / max(now.tokens, 1)
        words = f"{now.tokens} of {now.total} tokens, {left:.0f} s left"
        shown.update(HTML(_line(f'value="{now.tokens}" max="{now.total}"', words)))

    try:
        yield show
    finally:
        shown.update(HTML(""))


def _line(values: str, words: str) -> str:
    return f'<progress {values} style="width: 20em; vertical-align: middle"></progress> {words}'
