"""A number for every picture with its prompt.

Axes: n pictures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8


@dataclass(frozen=True)
class Score:
    """How well pictures fit their prompts.

    Attributes:
        name: of the network and what it gives.
        of: (pictures uint8 [H, W, 3], as many prompts) -> float64 [n].
    """

    name: str
    of: Callable[[Sequence[UInt8[np.ndarray, "H W 3"]], Sequence[str]], Float[np.ndarray, " n"]]
