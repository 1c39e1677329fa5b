"""The drafter's training set on disk: a target's features and the tokens they belong to.

A store is a folder of shards, each one picture chunk of

    features_00000.npy  float16 [n, G, S, D]   G = 2: conditional row, then unconditional
    tokens_00000.npy    int32 [n, T]

read through memory maps, so a store may be larger than memory. A shard appears whole or not at all: a killed
extraction goes on after its last shard.

Axes: n pictures, G guidance rows, S features of a sequence (prefix included), D width, T tokens of a picture.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int


def write_shard(
    folder: str | Path, index: int, features: Float[np.ndarray, "n G S D"], tokens: Int[np.ndarray, "n T"]
) -> None:
    """Add shard `index`; features are rounded to float16.

    Raises ValueError where the numbers of pictures differ.
    """
    if len(features) != len(tokens):
        raise ValueError(
            f"{len(features)} rows of features, {len(tokens)} of tokens: expected one of each a picture"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The tokens come last: a shard exists once they do.
    for name, values in (("features", features.astype(np.float16)), ("tokens", tokens.astype(np.int32))):
        temporary = folder / f"{name}_{index:05d}.part"
        with temporary.open("wb") as file:
            np.save(file, values)
        os.replace(temporary, folder / f"{name}_{index:05d}.npy")


def count_shards(folder: str | Path) -> int:
    """How many whole shards a folder holds, from 0 without a gap."""
    index = 0
    while (Path(folder) / f"tokens_{index:05d}.npy").is_file():
        index += 1
    return index


class FeatureStore:
    """Random access to the pictures of a folder of shards.

    Raises ValueError where the folder holds none.
    """

    def __init__(self, folder: str | Path):
        shards = count_shards(folder)
        if not shards:
            raise ValueError(f"{folder} holds no features; run `python -m train.features` first")
        names = range(shards)
        self._features = [np.load(Path(folder) / f"features_{i:05d}.npy", mmap_mode="r") for i in names]
        self._tokens = [np.load(Path(folder) / f"tokens_{i:05d}.npy", mmap_mode="r") for i in names]
        self._ends = np.cumsum([len(tokens) for tokens in self._tokens])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(
        self, pictures: Sequence[int] | Int[np.ndarray, " B"]
    ) -> tuple[Float[np.ndarray, "G B S D"], Int[np.ndarray, "B T"]]:
        """Features (float16, guidance axis in front) and tokens of the given pictures, in their order.

        Raises IndexError for a picture the store does not have.
        """
        pictures = np.asarray(pictures)
        if pictures.size and not (pictures.min() >= 0 and pictures.max() < len(self)):
            raise IndexError(
                f"pictures {pictures.min()} to {pictures.max()}: the store has 0 to {len(self) - 1}"
            )
        shards = np.searchsorted(self._ends, pictures, side="right")
        rows = pictures - np.concatenate([[0], self._ends])[shards]
        features = np.stack([self._features[s][r] for s, r in zip(shards, rows, strict=True)], axis=1)
        return features, np.stack([self._tokens[s][r] for s, r in zip(shards, rows, strict=True)])
