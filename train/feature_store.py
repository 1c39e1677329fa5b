"""The drafter's training set on disk: a target's features and the tokens they belong to.

A store is a folder of shards, each a chunk of pictures:

    features_00000.npy  float16 [n, G, S, D]   G = 2: conditional row, then unconditional
    prefix_00000.npy    int32 [n, G, P]        token ids of the prefix, -1 at padding
    tokens_00000.npy    int32 [n, T]

They are read through memory maps, so a store may be larger than memory. A shard appears whole or not at all: a killed
extraction continues after its last shard.

Axes: n pictures, G guidance rows, P prefix, T tokens of a picture's stream, S = P + T - 1 features of a sequence
(nothing follows its last token), D width.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from lantern_jax.apps.foreign.archives import read_header
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file, write_file

# The tokens come last: a shard exists once they do.
PARTS = ("features", "prefix", "tokens")


def write_array(path: Path, values: np.ndarray) -> None:
    """Writes a ``.npy`` file that appears whole or not at all."""
    write_file(path, lambda file: np.save(file, values), parents=True)


def write_shard(
    folder: str | Path,
    index: int,
    features: Float[np.ndarray, "n G S D"],
    prefix: Int[np.ndarray, "n G P"],
    tokens: Int[np.ndarray, "n T"],
) -> None:
    """Adds shard `index`; features are rounded to float16.

    Raises LanternError if the numbers of pictures differ, or features are not finite in float16.
    """
    if not len(features) == len(prefix) == len(tokens):
        raise LanternError(
            f"{len(features)} rows of features, {len(prefix)} of prefixes, {len(tokens)} of tokens: "
            "expected one of each per picture"
        )
    with np.errstate(over="ignore"):
        features = features.astype(np.float16, copy=False)
    if not np.isfinite(features).all():
        raise LanternError(
            "features are not finite in float16: the target's parameters are not those of a model"
        )
    for name, values in zip(PARTS, (features, prefix.astype(np.int32), tokens.astype(np.int32)), strict=True):
        write_array(Path(folder) / f"{name}_{index:05d}.npy", values)


def count_shards(folder: str | Path) -> int:
    """Counts the whole shards of a folder, from 0 without a gap."""
    index = 0
    while (Path(folder) / f"tokens_{index:05d}.npy").is_file():
        index += 1
    return index


class FeatureStore:
    """Random access to the pictures of a folder of shards.

    Raises LanternError if the folder holds none, or shards whose arrays do not fit.
    """

    def __init__(self, folder: str | Path):
        shards = count_shards(folder)
        if not shards:
            raise LanternError(f"{folder} holds no features; run `python -m train.features` first")
        self._parts = {
            name: [map_array(Path(folder) / f"{name}_{i:05d}.npy") for i in range(shards)] for name in PARTS
        }
        for parts in zip(*self._parts.values(), strict=True):
            if len({len(part) for part in parts}) > 1 or any(part.dtype.kind not in "if" for part in parts):
                raise LanternError(
                    f"{folder} holds features that do not fit: run `python -m train.features` again"
                )
        self._ends = np.cumsum([len(tokens) for tokens in self._parts["tokens"]])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one picture's features [G, S, D], prefix [G, P] and tokens [T]."""
        return {name: shards[0].shape[1:] for name, shards in self._parts.items()}

    def read(
        self, pictures: Sequence[int] | Int[np.ndarray, " B"]
    ) -> tuple[Float[np.ndarray, "B G S D"], Int[np.ndarray, "B G P"], Int[np.ndarray, "B T"]]:
        """Reads features (float16), prefix and tokens of the given pictures, in their order.

        Raises IndexError for a picture that the store does not have.
        """
        pictures = np.asarray(pictures)
        if pictures.size and not (pictures.min() >= 0 and pictures.max() < len(self)):
            raise IndexError(
                f"pictures {pictures.min()} to {pictures.max()}: the store has 0 to {len(self) - 1}"
            )
        shards = np.searchsorted(self._ends, pictures, side="right")
        rows = pictures - np.concatenate([[0], self._ends])[shards]
        where = list(zip(shards, rows, strict=True))
        return tuple(np.stack([self._parts[name][s][r] for s, r in where]) for name in PARTS)


def map_array(path: Path) -> np.ndarray:
    """Maps an array [n, ...] of an .npy file into memory.

    Raises:
        LanternError: no such file, or a truncated one.
    """
    try:
        with open_file(path) as file:
            shape, columns_first, dtype = read_header(file)
            if not shape:
                raise LanternError("no list of arrays")
            order = "F" if columns_first else "C"
            return np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape, order=order)
    except (OSError, ValueError, OverflowError) as error:
        raise LanternError(f"{path} is not a whole array ({errors.short(error)}): make it again") from error
