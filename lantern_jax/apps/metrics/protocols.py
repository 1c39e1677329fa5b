"""Published ways to measure: which network reads which pictures, and the known slips of their programs."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8

from lantern_jax.apps.metrics.preprocessing import PROTOCOL_SIDE, lantern_square, truncate_levels
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
class Slip:
    """A known slip of a published program, or of its use.

    Attributes:
        what: one sentence.
        step: what it does to pictures before a score; None if it is not reproduced.
        scores: names of the scores that it changes.
    """

    what: str
    step: Step | None = None
    scores: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preset:
    """A paper's way to measure.

    Attributes:
        readings: what is computed, in the order of the paper's table.
        scores: a step for pictures before a score, by the score's name.
        slips: off unless asked for.
        one_size: whether all pictures of both sets must have one size, since small differences in resizing show.
    """

    readings: tuple[Reading, ...]
    scores: dict[str, Step] = field(default_factory=dict)
    slips: tuple[Slip, ...] = ()
    one_size: bool = False

    def score_steps(self, name: str, with_slips: bool) -> list[Step]:
        """Returns the steps for a picture before this score, in order."""
        steps = [self.scores[name]] if name in self.scores else []
        slips = self.slips if with_slips else ()
        return steps + [slip.step for slip in slips if slip.step is not None and name in slip.scores]


_SQUARE = (f"centre square to {PROTOCOL_SIDE}", lantern_square)

# LANTERN (arXiv 2410.03355), the programs eval_fid_clip.py and eval_prec_recall.py of its repository.
LANTERN = Preset(
    readings=(
        Reading("inception", "clean", (FRECHET, KERNEL), _SQUARE),
        Reading("vgg", "linear", (MANIFOLDS,), strict=True),
    ),
    scores={"clip-lantern": lantern_square},
    slips=(
        Slip(
            "before CLIP, pictures are cut to whole levels: 63 of 256 drop by one",
            truncate_levels,
            ("clip-lantern",),
        ),
        Slip("pictures of a sample of prompts are scored with the captions of the first ones; refused here"),
    ),
)
# ADM's evaluator (arXiv 2105.05233), which LlamaGen's class-conditional table uses.
ADM = Preset(
    readings=(Reading("inception", "tf"),),
    slips=(
        Slip("distances for precision and recall are computed in float16 where finite; not reproduced here"),
    ),
    one_size=True,
)
PRESETS: Table[Preset] = Table("preset", {"lantern": LANTERN, "adm": ADM})
