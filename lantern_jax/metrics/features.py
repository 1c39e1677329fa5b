"""What a picture metric reads of a picture: a network's features, with the preprocessing that belongs to it.

Axes: n pictures, H W height and width, h w what the network takes, C channels, F features.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from lantern_jax.io.errors import LanternError


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
        """float64 [n, F] of pictures of any sizes, read in batches as they come.

        Raises:
            ValueError: values that are not finite.
        """
        parts: list[np.ndarray] = []
        waiting: list[np.ndarray] = []

        def flush():
            count = len(waiting)
            filled = np.stack([*waiting, *waiting[-1:] * (self.batch - count)])
            values = np.asarray(self.read(filled), np.float64)[:count]
            if not np.isfinite(values).all():
                raise LanternError(f"{self.name} gives values that are not finite: its weights are damaged")
            parts.append(values)
            waiting.clear()

        for picture in pictures:
            waiting.append(self.prepare(picture))
            if len(waiting) == self.batch:
                flush()
        if waiting:
            flush()
        return np.concatenate(parts) if parts else np.zeros((0, self.width))

    def after(
        self, name: str, step: Callable[[UInt8[np.ndarray, "H W 3"]], UInt8[np.ndarray, "h w 3"]]
    ) -> "FeatureReader":
        """This reader of what a step makes of each picture; the step's name goes into the reader's."""
        prepare = self.prepare
        return replace(self, name=f"{self.name} after {name}", prepare=lambda picture: prepare(step(picture)))


def network(
    apply: Callable[[Any, Any], Any], variables: Any
) -> Callable[[Float[np.ndarray, "n h w C"]], Float[np.ndarray, "n F"]]:
    """A network with its variables as a reader's ``read``: jitted, with full float32 products on accelerators too."""
    import jax

    variables, compiled = jax.device_put(variables), jax.jit(apply)

    def read(pictures: Float[np.ndarray, "n h w C"]) -> Float[np.ndarray, "n F"]:
        with jax.default_matmul_precision("highest"):
            return np.asarray(compiled(variables, pictures))

    return read


def usual_batch() -> int:
    """Pictures that a large network reads at once: few on a CPU, which is as fast with few."""
    import jax

    return 8 if jax.default_backend() == "cpu" else 64
