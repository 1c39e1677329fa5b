"""Published ways to measure: which network reads which pictures. Known mistakes of their programs are not repeated."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8

from lantern_jax.apps.metrics.preprocessing import PROTOCOL_SIDE, lantern_square
from lantern_jax.io.plugins import Table

Step = Callable[[UInt8[np.ndarray, "H W 3"]], UInt8[np.ndarray, "h w 3"]]
FRECHET, KERNEL, MANIFOLDS, CMMD = "frechet", "kid", "precision and recall", "cmmd"
# Computed unless a reader or preset says otherwise; CMMD is for CLIP alone.
ALL = (FRECHET, KERNEL, MANIFOLDS)


@dataclass(frozen=True)
class Reading:
    """A reader of both sets, and what is computed from its features.

    Attributes:
        features: name in ``registry.READERS``.
        preprocessing: one of the reader's.
        measures: some of ``ALL``, or ``CMMD``.
        step: applied to every picture before the reader, with its name; None for none.
        k, strict: of precision and recall.
    """

    features: str
    preprocessing: str
    measures: tuple[str, ...] = ALL
    step: tuple[str, Step] | None = None
    k: int = 3
    strict: bool = False


@dataclass(frozen=True)
class Preset:
    """A paper's way to measure.

    Attributes:
        readings: what is computed, in the order of the paper's table.
        scores: a step for pictures before a score, by the score's name.
        one_size: whether all pictures of both sets must have one size, since small differences in resizing show.
    """

    readings: tuple[Reading, ...]
    scores: dict[str, Step] = field(default_factory=dict)
    one_size: bool = False


_SQUARE = (f"centre square to {PROTOCOL_SIDE}", lantern_square)

# LANTERN (arXiv 2410.03355), the programs eval_fid_clip.py and eval_prec_recall.py of its repository.
LANTERN = Preset(
    readings=(
        Reading("inception", "clean", (FRECHET, KERNEL), _SQUARE),
        Reading("vgg", "linear", (MANIFOLDS,), strict=True),
    ),
    scores={"clip-lantern": lantern_square},
)
# ADM's evaluator (arXiv 2105.05233), which LlamaGen's class-conditional table uses.
ADM = Preset(
    readings=(Reading("inception", "tf"),),
    one_size=True,
)
PRESETS: Table[Preset] = Table("preset", {"lantern": LANTERN, "adm": ADM})
