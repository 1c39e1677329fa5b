"""Pictures of all tokens, or of those known so far; the latter are drawn so rarely that they cost little.

Axes: T codes of a picture, H W height and width, h w rows and columns of codes.
"""

import itertools
import time

import numpy as np
from jaxtyping import Bool, Int, UInt8

from lantern_jax.engine.engine import Engine
from lantern_jax.pipeline.call import drawn

# The share of the time, at most, that drawing unfinished pictures takes.
SHARE = 0.15
# Shown for unknown codes.
GREY = 128


class Painter:
    """Draws for one engine, a picture at a time: its bytes do not depend on what else is drawn.

    Attributes:
        spent: seconds of drawing so far, without compiling.
    """

    def __init__(self, engine: Engine, columns: int):
        self._engine, self._columns = engine, columns
        self.spent, self._rested = 0.0, 0.0

    @property
    def rested(self) -> bool:
        """Whether another unfinished picture may be drawn without exceeding ``SHARE``."""
        return time.perf_counter() >= self._rested

    def draw(self, codes: Int[np.ndarray, " T"]) -> UInt8[np.ndarray, "H W 3"]:
        """Draws a finished picture. Raises LanternError where it is not all numbers."""
        # A program for fewer groups of devices would have the parameters moved.
        groups = len(self._engine.devices)
        pictures, timing = drawn(self._engine, np.tile(codes, (groups, 1)), groups)
        self.spent += timing.drawing
        return pictures[0]

    def sketch(self, codes: Int[np.ndarray, " T"]) -> UInt8[np.ndarray, "H W 4"]:
        """Draws the codes that are known; grey and clear where they are -1."""
        began = time.perf_counter()
        known = codes >= 0
        picture = _covered(self.draw(guessed(codes, self._columns)), known, self._columns)
        now = time.perf_counter()
        self._rested = now + (now - began) * (1 / SHARE - 1)
        return picture


def guessed(codes: Int[np.ndarray, " T"], columns: int) -> Int[np.ndarray, " T"]:
    """Returns the codes, each unknown one (-1) as the nearest known one above it, so that edges look right."""
    rows = np.array(codes, np.int32).reshape(-1, columns)
    first = rows[0]
    first[first < 0] = first[first >= 0][-1] if (first >= 0).any() else 0
    for above, row in itertools.pairwise(rows):
        row[row < 0] = above[row < 0]
    return rows.ravel()


def _covered(
    picture: UInt8[np.ndarray, "H W 3"], known: Bool[np.ndarray, " T"], columns: int
) -> UInt8[np.ndarray, "H W 4"]:
    cells = known.reshape(-1, columns)
    height, width = (size // count for size, count in zip(picture.shape, cells.shape, strict=False))
    shown = np.repeat(np.repeat(cells, height, axis=0), width, axis=1)[:, :, None]
    return np.concatenate([np.where(shown, picture, np.uint8(GREY)), np.uint8(255) * shown], axis=2)
