"""What a generation hands back: pictures, tokens and statistics.

Axes: n pictures, H W height and width, T codes of a picture, L accepted counts (tree depth + 1).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from lantern_jax.decoding.stream import Decoded
from lantern_jax.io.errors import LanternError
from lantern_jax.pictures.images import as_html, encode_png, figures_line, grid


@dataclass(frozen=True)
class Statistics:
    """Sums and ratios over all pictures of a call.

    Attributes:
        pictures: n.
        tokens: tokens sampled; forced and given ones are left out.
        rounds: target passes after prefill.
        step_compression: (tokens - n) / rounds: tokens per target pass, without each picture's first token; with
            given first tokens, which leave nothing to prefill, tokens / rounds.
        seconds: wall time of decoding tokens, including prefill but neither compiling nor the VQ decoder; for an
            interrupted call it includes the time spent on unfinished pictures.
        picture_seconds: wall time of the VQ decoder.
        compile_seconds: wall time of tracing and compiling in this call; near 0 when the programs were at hand.
        tokens_per_second: tokens / seconds.
        substituted: fraction of tokens that a relaxed rule accepted and that the strict one, on the same random
            numbers, refuses.
        mean_distance: mean codebook distance from those tokens to the strict rule's; 0 when there are none.
        accepted: how many rounds accepted 0, 1, 2, ... draft tokens.
        speedup: with ``compare``, seconds of plain decoding / seconds; else None.
        same_tokens: with ``compare``, fraction of ``tokens`` equal to plain decoding's; else None.

    Example:
        >>> generation = lantern_jax.load("demo").generate("a foggy forest", num=2, seed=7)
        >>> statistics = generation.statistics  # of 512 tokens, in some 200 rounds
        >>> statistics.pictures, statistics.rounds < statistics.tokens, statistics.substituted
        (2, True, 0.0)
    """

    pictures: int
    tokens: int
    rounds: int
    step_compression: float
    seconds: float
    picture_seconds: float
    compile_seconds: float
    tokens_per_second: float
    substituted: float
    mean_distance: float
    accepted: tuple[int, ...]
    speedup: float | None = None
    same_tokens: float | None = None

    def to_json(self) -> dict:
        """Returns plain numbers and lists by name; ``speedup`` and ``same_tokens`` only after a comparison."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Timing:
    """Seconds of a call, by what they were spent on."""

    decoding: float = 0.0
    drawing: float = 0.0
    compiling: float = 0.0

    def __add__(self, other: "Timing") -> "Timing":
        return Timing(
            self.decoding + other.decoding, self.drawing + other.drawing, self.compiling + other.compiling
        )


def summarise(decoded: Decoded, timing: Timing, given: int = 0) -> Statistics:
    """Returns the statistics of decoded sequences (NumPy leaves), forced and ``given`` tokens left out."""
    count, rounds = len(decoded.tokens), int(decoded.rounds.sum())
    tokens, before = decoded.tokens.size - count * given, 0 if given else count
    substituted = int(decoded.substituted.sum())
    return Statistics(
        pictures=count,
        tokens=tokens,
        rounds=rounds,
        step_compression=(tokens - before) / max(rounds, 1),
        seconds=timing.decoding,
        picture_seconds=timing.drawing,
        compile_seconds=timing.compiling,
        tokens_per_second=tokens / timing.decoding,
        substituted=substituted / tokens,
        mean_distance=float(decoded.distance.sum()) / max(substituted, 1),
        accepted=tuple(int(number) for number in decoded.accepted.sum(axis=0)),
    )


@dataclass(frozen=True)
class Progress:
    """How far along a call is; passed to ``progress`` now and then, and once at the end. With ``compare``, the tokens
    and pictures of plain decoding count too.

    Attributes:
        tokens, total: tokens known so far and in the end, over all pictures of the call.
        pictures, count: pictures whose tokens are all known, and how many there will be.
        seconds: wall time of decoding so far, without compiling.

    Example:
        >>> def show(progress):  # for generate(..., progress=show)
        ...     print(f"{progress.tokens / progress.total:.0%}")
        >>> show(lantern_jax.Progress(tokens=64, total=256, pictures=0, count=1, seconds=0.5))
        25%
    """

    tokens: int
    total: int
    pictures: int
    count: int
    seconds: float


class Interrupted(KeyboardInterrupt):
    """A generation was stopped by Ctrl-C.

    Attributes:
        generation: the pictures that were done by then; None if there were none.

    Example:
        >>> try:  # a generation, stopped before its first picture
        ...     raise lantern_jax.Interrupted(None)
        ... except lantern_jax.Interrupted as stopped:
        ...     print(stopped.generation)
        None
    """

    def __init__(self, generation: "Generation | None"):
        super().__init__()
        self.generation = generation

    def __reduce__(self):
        # Exceptions are sent to another process with the arguments of ``super().__init__``, of which there are none.
        return type(self), (self.generation,)


@dataclass(frozen=True)
class Picture:
    """A single picture, as soon as it is done.

    Attributes:
        number: the picture's number in the call, counted from ``first``.
        prompt: what it was made from.
        picture: uint8 [H, W, 3]; None when the checkpoint has no VQ tokenizer.
        tokens: int32 [T], as in ``Generation``.
        rounds: target passes after prefill.

    Example:
        >>> pixels, tokens = np.zeros((128, 128, 3), np.uint8), np.zeros(256, np.int32)
        >>> picture = lantern_jax.Picture(number=3, prompt="a lake", picture=pixels, tokens=tokens, rounds=70)
        >>> picture.image.size
        (128, 128)
    """

    number: int
    prompt: str
    picture: UInt8[np.ndarray, "H W 3"] | None
    tokens: Int[np.ndarray, " T"]
    rounds: int

    @property
    def image(self) -> Image.Image | None:
        """The picture as a PIL image."""
        return None if self.picture is None else Image.fromarray(self.picture)


@dataclass(frozen=True, repr=False)
class Generation:
    """The pictures of a call, in the order of the prompts, ``num`` for each. A notebook shows them.

    Attributes:
        prompts: the prompt of every picture.
        pictures: uint8 [n, H, W, 3]; None when the checkpoint has no VQ tokenizer.
        tokens: int32 [n, T], the picture's codes row by row; tokens that the format forces are left out.
        round_of_token: int32 [n, T], the round that produced a token; 0 is the prefill, or a token that was given.
        statistics: see ``Statistics``.
        numbers: int64 [n], the number of every picture; a generation that was interrupted may lack some.
        plain: with ``compare``, the same pictures by plain decoding; else None.
        notes: remarks for the user: tuned settings that were used or not, options without effect.
        settings: what it was decoded with: the parts of the method as text, and the sampling distribution.
        log_probs: float32 [n, T], with ``log_probs=True``, else None: the model's own log probability of each token, in
            raster order, under the sampling distribution (guidance, temperature, filters); 0 for given tokens, -inf
            where a relaxed rule chose a token that a filter removes. At temperature 0, those of temperature 1.

    Example:
        >>> generation = lantern_jax.load("demo").generate("a foggy forest", num=2, seed=7)
        >>> generation.prompts, generation.numbers.tolist()
        (('a foggy forest', 'a foggy forest'), [0, 1])
        >>> generation.images[0].save("forest.png")  # 256 x 256 pixels, of generation.tokens[0], 256 codes
        >>> generation.save("forests.png")  # both in a grid
    """

    prompts: tuple[str, ...]
    pictures: UInt8[np.ndarray, "n H W 3"] | None
    tokens: Int[np.ndarray, "n T"]
    round_of_token: Int[np.ndarray, "n T"]
    statistics: Statistics
    numbers: Int[np.ndarray, " n"]
    plain: "Generation | None" = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    log_probs: Float[np.ndarray, "n T"] | None = None

    def __repr__(self) -> str:
        return f"<Generation: {figures_line(self)}>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def _repr_png_(self) -> bytes | None:
        return None if self.pictures is None else encode_png(grid(self.pictures))

    @property
    def images(self) -> list[Image.Image]:
        """The pictures as PIL images."""
        return [] if self.pictures is None else [Image.fromarray(picture) for picture in self.pictures]

    @property
    def sheet(self) -> Image.Image:
        """The picture, or all pictures in a grid, as one PIL image; raises LanternError without pictures."""
        pictures = self.drawn
        return Image.fromarray(grid(pictures) if len(pictures) > 1 else pictures[0])

    @property
    def drawn(self) -> UInt8[np.ndarray, "n H W 3"]:
        """The pictures; raises LanternError without any."""
        if self.pictures is None:
            raise LanternError("there are tokens and no pictures: the checkpoint has no VQ tokenizer")
        return self.pictures

    def save(self, path: str | Path) -> None:
        """Writes ``sheet`` to a file, whose suffix decides the format; raises LanternError as ``sheet`` does."""
        self.sheet.save(path)

    def show(self) -> None:
        """Opens ``sheet`` in the system's viewer; raises LanternError as ``sheet`` does."""
        self.sheet.show()


def compared(speculative: Generation, plain: Generation, given: int) -> Generation:
    """Returns a generation with plain decoding's attached and the two compared, ``given`` tokens left out."""
    ours, theirs = speculative.statistics, plain.statistics
    statistics = replace(
        ours,
        compile_seconds=ours.compile_seconds + theirs.compile_seconds,
        speedup=theirs.seconds / ours.seconds,
        same_tokens=float(np.mean(speculative.tokens[:, given:] == plain.tokens[:, given:])),
    )
    return replace(speculative, statistics=statistics, plain=plain)
