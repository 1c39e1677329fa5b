"""Reading pictures for metrics: a network's features, with its preprocessing, and scores of pictures with prompts.

Axes: n pictures, H W height and width, h w of a network's input, C channels, F features.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped, UInt8

from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class FeatureReader:
    """A network that reads pictures.

    Attributes:
        name: of network, layer and preprocessing, such as "inception pool_3, clean": sets are compared only if their
            readers' names are equal.
        width: F.
        prepare: a picture uint8 [H, W, 3] -> float32 [h, w, C], on the host.
        read: float32 [n, h, w, C] -> float32 [n, F], jitted; n is always ``batch``.
        batch: pictures read together.
    """

    name: str
    width: int
    prepare: Callable[[UInt8[np.ndarray, "H W 3"]], Float[np.ndarray, "h w C"]]
    read: Callable[[Float[np.ndarray, "n h w C"]], Float[np.ndarray, "n F"]]
    batch: int = 32

    def features(self, pictures: Iterable[UInt8[np.ndarray, "H W 3"]]) -> Float[np.ndarray, "n F"]:
        """Reads the features float64 [n, F] of pictures of any size, in batches as they come.

        Raises:
            LanternError: values that are not finite.
        """
        found = []
        for part in in_batches(self.read, self.batch, ((self.prepare(picture),) for picture in pictures)):
            if not np.isfinite(part).all():
                raise LanternError(f"{self.name} gives values that are not finite: its weights are damaged")
            found.append(part)
        return np.concatenate(found) if found else np.zeros((0, self.width))


@dataclass(frozen=True)
class Score:
    """A number for every picture with its prompt.

    Attributes:
        name: of the network and what it gives.
        of: (pictures uint8 [H, W, 3], one prompt each) -> float64 [n].
    """

    name: str
    of: Callable[[Sequence[UInt8[np.ndarray, "H W 3"]], Sequence[str]], Float[np.ndarray, " n"]]


def check_pairs(pictures: Sequence, prompts: Sequence[str]) -> None:
    """Raises LanternError unless there is one prompt for each picture."""
    if len(pictures) != len(prompts):
        raise LanternError(
            f"{len(pictures)} pictures for {len(prompts)} prompts: give one prompt per picture"
        )


def in_batches(
    read: Callable[..., Array], batch: int, rows: Iterable[tuple[np.ndarray, ...]]
) -> Iterator[Float[np.ndarray, "b ..."]]:
    """Yields, as float64, what a program for batches of one size returns for rows as they come.

    Args:
        read: takes as many arrays [batch, ...] as a row has; the last batch is padded with its last row.
    """
    rows = iter(rows)
    while some := list(itertools.islice(rows, batch)):
        whole = some + some[-1:] * (batch - len(some))
        inputs = (np.stack(column) for column in zip(*whole, strict=True))
        yield np.asarray(read(*inputs), np.float64)[: len(some)]


def network(apply: Callable[..., Any], variables: PyTree) -> Callable[..., Float[np.ndarray, "n ..."]]:
    """Makes the function by which ``in_batches`` reads: jitted, with full float32 products on accelerators too.

    Args:
        apply: (variables, arrays [n, ...]) -> array [n, ...].
    """
    import jax

    variables, compiled = jax.device_put(variables), jax.jit(apply)

    def read(*inputs: Shaped[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        with jax.default_matmul_precision("highest"):
            return np.asarray(compiled(variables, *inputs))

    return read


def usual_batch() -> int:
    """Returns how many pictures a large network reads together: few on a CPU, which is just as fast with few."""
    import jax

    return 8 if jax.default_backend() == "cpu" else 64
