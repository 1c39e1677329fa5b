"""What drafters share that read the target's sequence shifted by one: sizes, positions, shapes and cache.

Axes: G guidance rows, B batch, L absorbed positions, S cache slots, D width, E head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.cache import KVCache, new_cache, write_rows
from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.decoding.protocols import MOST_RECORDS
from lantern_jax.devices.partition import split
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import grid_rotary, line_rotary, padded_causal_mask, row_positions
from lantern_jax.models.sizes import check_sizes
from lantern_jax.models.transformer_config import TransformerConfig


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter for one target.

    Attributes:
        dim: D, the target's; heads and feed-forward width are the drafter's own.
        vocab_size, grid: the target's; ``vocab_size`` counts all embeddings, of codes and of other tokens.
        prefix_length: the target's P, for ``rotary`` "grid" only. The first P - 1 positions are prefix (rotary
            factors zero), position P - 1 + g belongs to grid cell g.
        rotary: "grid", LlamaGen's 2-D rotary embedding, or "line", the 1-D one over each row's own positions.
        qk_norm: as in ``TransformerConfig``.
        sees_padding: whether a prefix's padding is attended to like the rest, as LANTERN's drafters for LlamaGen were
            trained and published.
    """

    dim: int
    num_heads: int
    hidden_dim: int
    vocab_size: int = 16384
    grid: int = 16
    prefix_length: int = 120
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rotary: str = "grid"
    qk_norm: str = ""
    sees_padding: bool = False

    def __post_init__(self):
        check_sizes(self, may_be_zero=("markov_rank",))
        if self.rotary not in ("grid", "line"):
            raise LanternError(f"unknown rotary {self.rotary!r}: choose grid or line")
        _ = self.transformer  # Checks head width and norms.

    @property
    def transformer(self) -> TransformerConfig:
        return TransformerConfig(
            self.dim, 1, self.num_heads, self.hidden_dim, self.norm_eps, self.qk_norm,
            input_norm=False, final_norm=False,
        )  # fmt: skip


def like_layers_of(target: Any) -> dict[str, Any]:
    """Returns the fields of a ``DrafterConfig`` whose layer has the sizes of a target's layers."""
    layer = target.transformer
    own = {"num_heads": layer.num_heads, "hidden_dim": layer.hidden_dim, "qk_norm": layer.qk_norm}
    return own | target.shared_with_drafter


def sequence_shapes(model: nn.Module, width: int, method: str = "whole") -> dict[str, Any]:
    """Returns the abstract parameter tree of a module over the drafter's sequence, traced through ``method``.

    Args:
        width: of the target's features, as the method reads them.
        method: one that uses all parameters.
    """
    features = jax.ShapeDtypeStruct((1, 1, width), jnp.float32)
    rotary = jax.ShapeDtypeStruct((1, 1, model.config.transformer.head_dim // 2, 2), jnp.float32)
    tokens, mask = jax.ShapeDtypeStruct((1, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 1), jnp.bool_)
    return jax.eval_shape(
        partial(model.init, method=method), jax.random.key(0), features, tokens, rotary, mask
    )


def sequence_rotary(
    config: DrafterConfig, valid: Bool[Array, "*rows S"]
) -> Float[Array, "*rows_or_ones S E/2 2"]:
    """Returns rotation factors of the first S positions of the drafter's sequence; ``valid`` is False at padding.

    On a grid: zero on the prefix, then each cell's. On a line: by each row's own count of positions.
    """
    head_dim = config.transformer.head_dim
    if config.rotary == "line":
        return line_rotary(row_positions(valid), head_dim, config.rope_base)
    cells = grid_rotary(config.grid, head_dim, config.rope_base)
    factors = np.concatenate([np.zeros((config.prefix_length - 1, *cells.shape[1:]), np.float32), cells])
    return jnp.asarray(factors[: valid.shape[-1]])[(None,) * (valid.ndim - 1)]


def seen(config: DrafterConfig, valid: Bool[Array, "*rows S"]) -> Bool[Array, "*rows S"]:
    """Returns which positions the drafter treats as valid: those that are, or all if it sees padding."""
    return jnp.ones_like(valid) if config.sees_padding else valid


@lru_cache(MOST_RECORDS)
def record_of(model: nn.Module, *parts: Callable) -> Drafter:
    """Returns the record of these functions of a module, always the same one: programs are looked up by it."""
    return Drafter(*(partial(part, model) for part in parts))


def prefix_cache(model: nn.Module, params, prefix, slots: int) -> KVCache:
    """Runs the prefix; returns the drafter's cache of it."""
    valid = seen(model.config, prefix.mask[:, :, :-1])
    _, block = model.apply(
        params["drafter"],
        prefix.features[:, :, :-1],
        prefix.tokens[:, :, 1:],
        sequence_rotary(model.config, valid),
        padded_causal_mask(valid),
        method="committed",
    )
    return new_cache(block, valid, prefix.guidance, slots)


def empty_places(model: nn.Module, cache: KVCache, places: int):
    """Returns zeros for the keys and values of ``places`` positions."""
    config, (rows, batch) = model.config, cache.prefix_mask.shape[:2]
    shape = (rows, batch, config.num_heads, places, config.transformer.head_dim)
    zeros = split(jnp.zeros_like(cache.layers[0][0], shape=shape), 2)
    return zeros, zeros


def write_recent(cache: KVCache, recent, count: Int[Array, " B"]) -> KVCache:
    """Appends the ``count`` rows that the last round absorbed."""
    start = cache.prefix_mask.shape[-1] + cache.length
    pairs = zip(cache.layers[0], recent, strict=True)
    layer = tuple(write_rows(slots, new, start) for slots, new in pairs)
    return cache.replace(layers=(layer,), length=cache.length + count)


def last_absorbed(states: Float[Array, "G B L D"], count: Int[Array, " B"]) -> Float[Array, "G B 1 D"]:
    """Takes each sequence's state at its last absorbed position: the root of the tree."""
    return jnp.take_along_axis(states, jnp.maximum(count - 1, 0)[None, :, None, None], axis=2)
