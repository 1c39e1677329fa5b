"""What a picture metric reads of a picture: a network's features, with the preprocessing that belongs to it.

Axes: n pictures, H W height and width, h w what the network takes, C channels, F features.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8


@dataclass(frozen=True)
class FeatureReader:
    """A network that reads pictures.

    Attributes:
        name: of network, layer and preprocessing, such as "inception pool_3, clean": sets whose names differ are not
            compared.
        width: F.
        prepare: a picture uint8 [H, W, 3] -> float32 [h, w, C], on the host.
        read: float32 [n, h, w, C] -> float32 [n, F], jitted; n is always ``batch``.
        batch: pictures read at once.
    """

    name: str
    width: int
    prepare: Callable[[UInt8[np.ndarray, "H W 3"]], Float[np.ndarray, "h w C"]]
    read: Callable[[Float[np.ndarray, "n h w C"]], Float[np.ndarray, "n F"]]
    batch: int = 32

    def features(self, pictures: Iterable[UInt8[np.ndarray, "H W 3"]]) -> Float[np.ndarray, "n F"]:
        """float64 [n, F] of pictures of any sizes, read in batches as they come."""
        parts: list[np.ndarray] = []
        waiting: list[np.ndarray] = []

        def flush():
            count = len(waiting)
            filled = np.stack([*waiting, *waiting[-1:] * (self.batch - count)])
            parts.append(np.asarray(self.read(filled), np.float64)[:count])
            waiting.clear()

        for picture in pictures:
            waiting.append(self.prepare(picture))
            if len(waiting) == self.batch:
                flush()
        if waiting:
            flush()
        return np.concatenate(parts) if parts else np.zeros((0, self.width))
