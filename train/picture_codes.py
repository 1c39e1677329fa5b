"""Pictures as codes, of which each step of a drafter's training computes the target's features itself.

Axes: B batch, G guidance rows, P prefix, T tokens of a stream, S = P + T - 1 features of a sequence, F their width.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.protocols import Target
from train.features import features_of, streams
from train.sources import Source, landscapes, prompted
from train.target import read_tokens


@dataclasses.dataclass(frozen=True)
class PictureCodes:
    """Pictures' codes, of which each step computes the features that it reads.

    Attributes:
        record: the target, with the features that the drafter reads.
        source: conditioning and codes.
    """

    record: Target
    source: Source

    def __len__(self) -> int:
        return self.source.count

    def read(self, pictures: Int[np.ndarray, " B"]) -> dict[str, PyTree]:
        """Returns a batch: "conditioning", leaves [B, P, ...], and "tokens", int32 [B, T]."""
        codes = self.source.codes(pictures)
        return {"conditioning": self.source.conditioning(pictures), "tokens": streams(self.record, codes)}

    def with_features(self, params: PyTree, batch: PyTree) -> dict[str, Array]:
        """Returns such a batch with "features" [B, G, S, F] and "prefix" int32 [B, G, P]; traceable.

        Args:
            params: the target's.
        """
        tokens = batch["tokens"]
        features, prefix = features_of(self.record)(params, batch["conditioning"], tokens)
        return {
            "features": jnp.swapaxes(features, 0, 1),
            "prefix": jnp.swapaxes(prefix, 0, 1),
            "tokens": tokens,
        }


def pictures_of(
    checkpoint: Checkpoint,
    workdir: str | Path,
    *,
    folder: str | Path | None = None,
    tokens: str | Path | None = None,
    most: int | None = None,
    dtype: Any = np.float32,
) -> Source:
    """Returns the pictures of a folder, as `prompted` does, or those that `train.encode` wrote.

    Args:
        most: the most pictures to take; None for all.
        dtype: of the text encoder.

    Raises LanternError as `prompted` and `read_tokens` do.
    """
    if tokens is None:
        return prompted(checkpoint, workdir, folder, pictures=most, dtype=dtype)[0]
    codes, attributes = read_tokens(tokens, "train")
    return landscapes(checkpoint, codes[:most], attributes[:most], 0, 0)[0]
