"""Ids, masks and prompts, looked at before any work, where their numbers are at hand: not while a program is traced.

A model that is asked for what it has not answers all the same: JAX wraps negative ids and reads the last row for those
past the end, and nothing tells padding from a prompt's last token.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.io.errors import LanternError


def at_hand(values: Any) -> np.ndarray | None:
    """Reads an array onto the host; None where its numbers are not known: while a program is traced, or where parts of
    it lie with other processes."""
    if isinstance(values, jax.core.Tracer | jax.ShapeDtypeStruct):
        return None
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        return None
    return np.asarray(jax.device_get(values))


def check_ids(name: str, ids: Any, count: int | None, read: Any = None) -> None:
    """Raises ValueError unless ids, or the like, are whole numbers from 0 to ``count`` - 1, so far as they are at hand.

    JAX wraps negative ids and takes the last row for those past the end, without a word.

    Args:
        count: None where it is not known: any that is not negative will do.
        read: bool, broadcast to the ids: which of them matter; None for all.
    """
    ids = ids if hasattr(ids, "dtype") else np.asarray(ids)
    most = np.iinfo(np.int32).max if count is None else count - 1
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise LanternError(f"{name} are {ids.dtype}: give whole numbers, such as int32")
    ids, read = at_hand(ids), at_hand(np.True_ if read is None else read)
    if ids is None or read is None:
        return
    ids = ids[np.broadcast_to(read, ids.shape)]
    if ids.size and not 0 <= ids.min() <= ids.max() <= most:
        raise LanternError(f"{name} are {ids.min()} to {ids.max()}: give 0 to {most}")


def check_padding(mask: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless a mask is bool of this shape and, so far as it is at hand, prompts end where rows do."""
    mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
    if mask.shape != shape or mask.dtype != bool:
        raise LanternError(
            f"the mask has shape {mask.shape} of {mask.dtype}: give bool {shape}, False at padding"
        )
    mask = at_hand(mask)
    if mask is not None and mask.size and not mask[..., -1].all():
        row = int(np.argmin(mask[..., -1].ravel()))
        raise LanternError(f"the mask of prompt {row} ends in padding on the right: pad on the left")


def check_prompts(vocab_size: int | None, conditioning: Any) -> None:
    """Raises ValueError unless prompts are ids below ``vocab_size`` (None: not known), padded on the left."""
    tokens, mask = getattr(conditioning, "tokens", conditioning), getattr(conditioning, "mask", None)
    if mask is not None:
        check_padding(mask, np.shape(tokens))
    check_ids("ids of prompts", tokens, vocab_size, mask)
