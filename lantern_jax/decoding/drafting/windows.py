"""Windows from the settings of a generation."""

from typing import Any

from lantern_jax.decoding.couplings import base_of
from lantern_jax.decoding.drafting.jacobi import Window, drafting_of
from lantern_jax.decoding.protocols import Drafting, Target


def window_of(settings: Any, target: Target, grid: int) -> Window:
    """Returns the window on the settings' tree; a row of the stream is one of the picture and its forced tokens."""
    redraw = None if base_of(settings.coupling) == "gumbel" else settings.redraw
    rows = int((target.forced < 0).sum()) // grid
    return Window(target.vocab_size, settings.tree, redraw, settings.initial, target.num_tokens // rows)


def from_settings(settings: Any, target: Target, grid: int, drafter: None) -> Drafting:
    """Returns the drafting that ``Settings`` describe, as ``DraftingKind.make``."""
    return drafting_of(window_of(settings, target, grid))
