"""What a generation hands back: pictures, tokens and statistics.

Axes: n pictures, H W height and width, T codes of a picture, L accepted counts (tree depth + 1).
"""

from dataclasses import asdict, dataclass, field

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax import pictures as picture_files
from lantern_jax.decoding.loop import Decoded


@dataclass(frozen=True)
class Statistics:
    """Sums and ratios over all pictures of a call.

    Attributes:
        pictures: n.
        tokens: tokens sampled, forced ones left out.
        rounds: target passes after prefill.
        step_compression: (tokens - n) / rounds: tokens after the first of each picture, a target pass.
        seconds: wall time of decoding tokens, prefill included, without compiling and without the VQ decoder.
        picture_seconds: wall time of the VQ decoder.
        compile_seconds: wall time of tracing and compiling in this call; near 0 when programs were at hand.
        tokens_per_second: tokens / seconds.
        substituted: fraction of tokens that a relaxed rule accepted where the strict one, on the same random
            numbers, refuses.
        mean_distance: mean codebook distance of those to the strict rule's token; 0 when there are none.
        accepted: how many rounds accepted 0, 1, 2, ... draft tokens.
        speedup: with ``compare``, seconds of plain decoding / seconds; else None.
        same_tokens: with ``compare``, fraction of tokens equal to plain decoding's; else None.
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
        """Plain numbers and lists by name; ``speedup`` and ``same_tokens`` only where there was a comparison."""
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


def summarise(decoded: Decoded, timing: Timing) -> Statistics:
    """Statistics of decoded sequences (NumPy leaves, forced tokens left out)."""
    count, tokens, rounds = len(decoded.tokens), decoded.tokens.size, int(decoded.rounds.sum())
    substituted = int(decoded.substituted.sum())
    return Statistics(
        pictures=count,
        tokens=tokens,
        rounds=rounds,
        step_compression=(tokens - count) / max(rounds, 1),
        seconds=timing.decoding,
        picture_seconds=timing.drawing,
        compile_seconds=timing.compiling,
        tokens_per_second=tokens / timing.decoding,
        substituted=substituted / tokens,
        mean_distance=float(decoded.distance.sum()) / max(substituted, 1),
        accepted=tuple(int(number) for number in decoded.accepted.sum(axis=0)),
    )


@dataclass(frozen=True)
class Generation:
    """Pictures of a call, in the order of the prompts, ``num`` for each.

    Attributes:
        prompts: the prompt of every picture.
        pictures: uint8 [n, H, W, 3]; None when the checkpoint has no VQ tokenizer.
        tokens: int32 [n, T], the picture's codes row by row; tokens that the format forces are left out.
        round_of_token: int32 [n, T], the round that produced a token; 0 is the prefill.
        statistics: see ``Statistics``.
        plain: the same by plain decoding, with ``compare``; else None.
    """

    prompts: tuple[str, ...]
    pictures: UInt8[np.ndarray, "n H W 3"] | None
    tokens: Int[np.ndarray, "n T"]
    round_of_token: Int[np.ndarray, "n T"]
    statistics: Statistics
    plain: "Generation | None" = field(default=None, repr=False)

    @property
    def images(self) -> list[Image.Image]:
        """The pictures as PIL images."""
        return [] if self.pictures is None else picture_files.to_images(self.pictures)

    def draw_acceptance(self, columns: int | None = None) -> list[UInt8[np.ndarray, "OH OW 3"]]:
        """The pictures with the number of draft tokens that each round accepted drawn over them.

        ``columns`` is the number of tokens a row; None for a square of tokens.
        """
        columns = int(self.tokens.shape[1] ** 0.5) if columns is None else columns
        deepest = len(self.statistics.accepted) - 1
        return [
            picture_files.draw_acceptance(picture, rounds, columns, deepest)
            for picture, rounds in zip(self.pictures, self.round_of_token, strict=True)
        ]
