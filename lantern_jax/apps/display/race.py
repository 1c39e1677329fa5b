"""An animation of plain and speculative decoding painting the same picture, in true proportion to times or passes.

Axes: T tokens, H W height and width, f frames.
"""

import base64
import html
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

from lantern_jax.apps.display.acceptance import columns_of, enlarge
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.pictures.images import side_by_side

# File ending -> Pillow's name of the format.
FORMATS = {".webp": "WEBP", ".gif": "GIF", ".png": "PNG"}
FRAMES_A_SECOND = 15
# A longer race is sped up.
LONGEST_SECONDS = 12.0
# How long the last frame is shown.
END_SECONDS = 2.5
# Approximate pixels along a side.
SIDE = 256
_UNKNOWN = 30
_LIT = 0.55


def check_race(path: str | Path) -> Path:
    """Returns the path; raises LanternError unless its suffix is that of an animated format."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise errors.invalid("race", str(path), f"a file that ends in {', '.join(FORMATS)}")
    return path


@dataclass(frozen=True, repr=False)
class Race:
    """A race of plain and speculative decoding to paint a picture; a notebook plays it, ``save`` writes it.

    Attributes:
        generation: with plain decoding beside it (``compare=True``).
        number: of the picture, from 0.
        passes: whether they race by passes of the target, the same on every machine, rather than by seconds.

    Raises:
        LanternError: a generation without plain decoding or pictures; no picture of that number.

    Example:
        >>> lantern = lantern_jax.load("demo")
        >>> race = lantern_jax.Race(lantern.generate("a foggy forest", method="jacobi", compare=True))
        >>> race.save("race.webp")
    """

    generation: Any
    number: int = 0
    passes: bool = False

    def __post_init__(self):
        pictures = self.generation.pictures
        if self.generation.plain is None or pictures is None:
            raise LanternError(
                "a race needs pictures with plain decoding beside them: generate with compare=True"
            )
        if not 0 <= self.number < len(pictures):
            raise LanternError(f"there is no picture {self.number}: give 0 to {len(pictures) - 1}")

    def __repr__(self) -> str:
        return f"<Race: plain and speculative decoding of {self.generation.prompts[self.number]!r}>"

    def _repr_html_(self) -> str:
        text = html.escape(f"Plain and speculative decoding paint {self.generation.prompts[self.number]!r}.")
        data = base64.b64encode(self.encode(".webp")).decode()
        return f'<img alt="{text}" src="data:image/webp;base64,{data}">'

    def save(self, path: str | Path) -> None:
        """Writes the animation; raises LanternError unless the path ends in .webp, .gif or .png."""
        write_file(path, self.encode(check_race(path).suffix))

    def encode(self, suffix: str) -> bytes:
        """Returns the contents of a file that ends in .webp, .gif, or .png for an animated PNG."""
        kind = FORMATS[suffix.lower()]
        pictures, milliseconds = self.frames()
        first, *others = [Image.fromarray(picture) for picture in pictures]
        if kind == "GIF":
            first, *others = [image.quantize(128) for image in (first, *others)]
        buffer = io.BytesIO()
        options = {"quality": 80, "method": 4} if kind == "WEBP" else {}
        first.save(
            buffer, kind, save_all=True, append_images=others, duration=milliseconds, loop=0, **options
        )
        return buffer.getvalue()

    def frames(self) -> tuple[UInt8[np.ndarray, "f H W 3"], list[int]]:
        """Returns the frames, and the milliseconds that each is shown."""
        sides = {"plain": self.generation.plain, "speculative": self.generation}
        runners = {name: _Runner(side, self.number, self.passes) for name, side in sides.items()}
        longest = max(runner.length for runner in runners.values())
        count = 1 + math.ceil(min(longest, LONGEST_SECONDS) * FRAMES_A_SECOND)
        frames = []
        for now in np.linspace(0, longest, count):
            captions = [f"{name} {runner.clock(now)}" for name, runner in runners.items()]
            frames.append(side_by_side([runner.picture(now) for runner in runners.values()], captions))
        milliseconds = round(1000 / FRAMES_A_SECOND)
        return np.stack(frames), [*[milliseconds] * (count - 1), round(1000 * END_SECONDS)]


class _Runner:
    """One picture being painted.

    Attributes:
        length: its passes, or else its share of the time that decoding took, in seconds.
    """

    def __init__(self, generation: Any, number: int, passes: bool):
        picture, self._rounds = generation.pictures[number], generation.round_of_token[number]
        self._columns = columns_of(picture, len(self._rounds))
        scale = max(1, round(SIDE / picture.shape[1]))
        self._picture = enlarge(picture, scale)
        self._cell = self._picture.shape[1] // self._columns
        self._passes, self._last = passes, int(self._rounds.max())
        mean = generation.round_of_token.max(axis=1).mean()
        share = self._last / mean if mean else 1.0
        seconds = float(generation.statistics.seconds / len(generation.pictures) * share)
        self.length = float(self._last) if passes else seconds

    def clock(self, now: float) -> str:
        """Returns how far it has got, in words."""
        return f"{self._done(now)} passes" if self._passes else f"{min(now, self.length):.2f} s"

    def picture(self, now: float) -> UInt8[np.ndarray, "H W 3"]:
        """Returns the picture as painted by ``now``, with the last round's tokens lit until the end."""
        done = self._done(now)
        known = self._cells(self._rounds <= done)
        painted = np.where(known, self._picture, np.uint8(_UNKNOWN)).astype(np.float32)
        if now < self.length:
            lit = self._cells(self._rounds == done)
            painted = np.where(lit, painted + _LIT * (255 - painted), painted)
        return np.rint(painted).astype(np.uint8)

    def _done(self, now: float) -> int:
        """Returns how many rounds are done."""
        return self._last if now >= self.length else int(now / self.length * self._last)

    def _cells(self, tokens: Bool[np.ndarray, " T"]) -> Bool[np.ndarray, "H W 1"]:
        by_row = tokens.reshape(-1, self._columns)
        return np.repeat(np.repeat(by_row, self._cell, axis=0), self._cell, axis=1)[:, :, None]
