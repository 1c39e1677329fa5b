"""Checks of ids, masks and prompts before any work, where their values are known: not while a program is traced.

JAX wraps negative ids and reads the last row for ids past the end, without an error, and nothing tells padding from a
prompt's last token.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.io.errors import LanternError


def at_hand(values: Any) -> np.ndarray | None:
    """Reads an array onto the host; None while a program is traced, or where other processes hold parts of it."""
    if isinstance(values, jax.core.Tracer | jax.ShapeDtypeStruct):
        return None
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        return None
    return np.asarray(jax.device_get(values))


def check_ids(name: str, ids: Any, count: int | None, read: Any = None) -> None:
    """Raises LanternError unless ids are whole numbers from 0 to ``count`` - 1 (None: any), as far as they are known.

    ``read``, bool, broadcast to the ids, tells which of them matter; None for all.
    """
    ids = ids if hasattr(ids, "dtype") else np.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise LanternError(f"{name} are {ids.dtype}: give whole numbers, such as int32")
    most = np.iinfo(np.int32).max if count is None else count - 1
    ids, read = at_hand(ids), at_hand(np.True_ if read is None else read)
    if ids is None or read is None:
        return
    ids = ids[np.broadcast_to(read, ids.shape)]
    if ids.size and not 0 <= ids.min() <= ids.max() <= most:
        raise LanternError(f"{name} are {ids.min()} to {ids.max()}: give 0 to {most}")


def check_logits(what: str, logits: Any) -> None:
    """Raises LanternError unless logits, as far as they are known, are numbers, or -inf beside others of the row."""
    logits = at_hand(logits)
    sound = True if logits is None else (logits < np.inf).all(axis=-1) & np.isfinite(logits.max(axis=-1))
    if not np.all(sound):
        row = ", ".join(map(str, np.argwhere(~sound)[0]))
        raise LanternError(
            f"{what} that are no numbers, at [{row}]: give finite ones, -inf where an id is not allowed, and one that "
            "is allowed in each row"
        )


def check_padding(mask: Any, shape: tuple[int, ...]) -> None:
    """Raises LanternError unless a mask is bool of this shape and, as far as it is known, prompts end where rows do."""
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
    """Raises LanternError unless prompts are ids [B, P] below ``vocab_size`` (None: any), padded on the left."""
    tokens, mask = getattr(conditioning, "tokens", conditioning), getattr(conditioning, "mask", None)
    if np.ndim(tokens) != 2 or not np.shape(tokens)[1]:
        raise LanternError(f"prompts have shape {np.shape(tokens)}: give ids [B, P], at least one per prompt")
    if mask is not None:
        check_padding(mask, np.shape(tokens))
    check_ids("ids of prompts", tokens, vocab_size, mask)
