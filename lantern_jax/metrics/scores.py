"""A number for every picture with its prompt.

Axes: n pictures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Score:
    """How well pictures fit their prompts.

    Attributes:
        name: of the network and what it gives.
        of: (pictures uint8 [H, W, 3], one prompt each) -> float64 [n].
    """

    name: str
    of: Callable[[Sequence[UInt8[np.ndarray, "H W 3"]], Sequence[str]], Float[np.ndarray, " n"]]


def check_pairs(pictures: Sequence, prompts: Sequence[str]) -> None:
    """Raises LanternError unless there is one prompt for each picture."""
    if len(pictures) != len(prompts):
        raise LanternError(f"{len(pictures)} pictures for {len(prompts)} prompts: give one prompt a picture")
