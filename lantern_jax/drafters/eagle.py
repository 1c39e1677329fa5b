"""The EAGLE-style drafter (arXiv 2401.15077, as released with LANTERN): one layer that predicts features.

The drafter's sequence is the target's, shifted by one: position j holds the target's feature at j and the token at
j + 1, and predicts the feature at j + 1. The target's own head turns features into logits.

Axes: G guidance rows, B batch, P prefix of the target, L absorbed positions, M nodes of a level, X room for expanded
nodes (root excluded), S cache slots, D width, V codes, E head width.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.cache import KVCache
from lantern_jax.decoding.drafting.eagle import Drafter, Stale
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.devices.partition import whole
from lantern_jax.drafters.eagle_weights import DIALECT, convert_drafter
from lantern_jax.drafters.registry import DrafterKind
from lantern_jax.drafters.sequence import (
    DrafterConfig,
    empty_places,
    last_absorbed,
    like_layers_of,
    prefix_cache,
    record_of,
    sequence_shapes,
    write_recent,
)
from lantern_jax.models.heads import head_logits
from lantern_jax.models.positions import stream_rotary
from lantern_jax.models.transformer import Dense, Transformer


class DrafterModel(nn.Module):
    """The drafter's network. Parameters: tokens, fc, transformer/layer_0 (no input norm, no final norm).

    Call:
        features: [..., N, D], of the position before each token.
        tokens: int32 [..., N].
        rotary, mask, past, past_masks: as in Transformer.

    Returns:
        predicted features [..., N, D] and the new keys and values.
    """

    config: DrafterConfig
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        config, types = self.config, (self.dtype, self.param_dtype)
        self.tokens = nn.Embed(config.vocab_size, config.dim, *types, nn.initializers.normal(0.02))
        self.fc = Dense(config.dim, *types, use_bias=True, kernel_init=nn.initializers.lecun_normal())
        self.transformer = Transformer(config.transformer, *types)

    def __call__(self, features, tokens, rotary, mask, past=(), past_masks=()):
        return self.run(self.read(features, tokens), rotary, mask, past, past_masks)

    def read(self, features: Float[Array, "*rows N D"], tokens: Int[Array, "*rows N"]):
        """Joins features and tokens into the layer's inputs [..., N, D]."""
        both = [whole(self.tokens(tokens)), features.astype(self.dtype)]
        return whole(self.fc(jnp.concatenate(both, axis=-1)))

    def run(self, x, rotary, mask, past=(), past_masks=()):
        """Runs the layer on its inputs."""
        return self.transformer(x, rotary, mask, past, past_masks)

    def fuse(self, features):
        """Returns the target's own features as the call reads them."""
        return features

    def committed(self, *inputs):
        """Runs committed positions: calls the model with the target's own features."""
        return self(*inputs)

    def head_input(self, predicted):
        """Returns the input of the target's head: the predicted features."""
        return predicted


@flax.struct.dataclass
class DrafterState:
    """Committed tokens and this round's nodes, for a drafter that continues from its own output.

    Attributes:
        cache: keys and values absorbed in earlier rounds; ``length`` counts tokens.
        recent: keys and values [G, B, H, L, E] absorbed this round. They enter the cache at the start of the next
            ``absorb``: a cache that is written before it is read is not copied.
        count: int32 [B], number of recent rows in use.
        features: [G, B, 1 + X, D], predicted features: the root's, then each expanded node's.
        nodes: keys and values [G, B, H, X, E] of the expanded nodes.
        ancestors: bool [B, 1 + X, X], which expanded nodes each node sees (the root none).
        depth: int32 [B, 1 + X], below the root.
        expanded: int32 [], number of the X places in use.
    """

    cache: KVCache
    recent: tuple[Float[Array, "G B H L E"], Float[Array, "G B H L E"]]
    count: Int[Array, " B"]
    features: Float[Array, "G B 1+X D"]
    nodes: tuple[Float[Array, "G B H X E"], Float[Array, "G B H X E"]]
    ancestors: Bool[Array, "B 1+X X"]
    depth: Int[Array, "B 1+X"]
    expanded: Int[Array, ""]


def drafter_shapes(config: DrafterConfig) -> dict[str, Any]:
    """Returns the abstract parameter tree of a drafter, ``{"params": ...}``."""
    return sequence_shapes(DrafterModel(config), config.dim, "committed")


def eagle_drafter(config: DrafterConfig, dtype: jnp.dtype = jnp.float32) -> Drafter:
    """Returns the drafter record. Parameters: ``{"drafter": DrafterModel's, "head": kernel [D, V] of the target}``.

    The same config and dtype return the same record, so compiled programs are reused.

    Example:
        >>> from lantern_jax.drafters.eagle import eagle_drafter
        >>> from lantern_jax.drafters.sequence import DrafterConfig
        >>> config = DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> lantern_jax.draftings.eagle(eagle_drafter(config), lantern_jax.DraftTree.chain(4)).max_depth
        4
    """
    return chained_drafter(DrafterModel(config, jnp.dtype(dtype)))


def chained_drafter(model: nn.Module) -> Drafter:
    """Returns the record of a module whose output at a node is what its children read.

    The module has the call, ``fuse``, ``committed`` and ``head_input`` of ``DrafterModel``.
    """
    return record_of(model, _init, _absorb, _expand, _refine)


def _init(model: nn.Module, params, prefix, slots: int, span: int, nodes: int) -> DrafterState:
    config, (rows, batch) = model.config, prefix.tokens.shape[:2]
    cache = prefix_cache(model, params, prefix, slots)
    return DrafterState(
        cache=cache,
        recent=empty_places(model, cache, span),
        count=jnp.zeros(batch, jnp.int32),
        features=whole(jnp.zeros((rows, batch, 1 + nodes, config.dim), model.dtype)),
        nodes=empty_places(model, cache, nodes),
        ancestors=jnp.zeros((batch, 1 + nodes, nodes), bool),
        depth=jnp.zeros((batch, 1 + nodes), jnp.int32),
        expanded=jnp.int32(0),
    )


def _absorb(model: nn.Module, params, state: DrafterState, features, tokens, count):
    cache = write_recent(state.cache, state.recent, state.count)
    rows, batch, length = features.shape[:3]
    positions = cache.length[:, None] + jnp.arange(length, dtype=jnp.int32)[None]
    causal = jnp.asarray(np.tril(np.ones((length, length), bool)))[None, None]
    tokens = jnp.broadcast_to(tokens[None], (rows, batch, length))
    predicted, (recent,) = model.apply(
        params["drafter"], features, tokens, stream_rotary(model.config, cache.prefix_mask, positions), causal,
        (cache.layers,), (cache.mask,), method="committed",
    )  # fmt: skip
    root = last_absorbed(predicted, count)
    # No node sees places past ``expanded``, so their old contents may stay.
    features = lax.dynamic_update_slice_in_dim(state.features, root.astype(model.dtype), 0, axis=2)
    state = state.replace(
        cache=cache, recent=recent, count=count, features=features, expanded=jnp.zeros_like(state.expanded)
    )
    return state, _guided_logits(model, params, state, root)[:, 0]


def _expand(model: nn.Module, params, state: DrafterState, tokens, parents):
    batch, nodes = tokens.shape
    parents = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens.shape)
    features = jnp.take_along_axis(state.features, parents[None, :, :, None], axis=2)
    depth = jnp.take_along_axis(state.depth, parents, axis=1) + 1
    seen = jnp.take_along_axis(state.ancestors, parents[:, :, None], axis=1)
    itself = jnp.broadcast_to(jnp.eye(nodes, dtype=bool)[None], (batch, nodes, nodes))
    predicted, block = _run_below(model, params, state, features, tokens, depth, seen, itself)
    at = state.expanded

    def write(places, new, axis, offset=0):
        return lax.dynamic_update_slice_in_dim(places, new.astype(places.dtype), at + offset, axis)

    grown = state.replace(
        features=write(state.features, predicted, 2, 1),
        nodes=tuple(write(places, new, 3) for places, new in zip(state.nodes, block, strict=True)),
        ancestors=write(state.ancestors, write(seen, itself, 2), 1, 1),
        depth=write(state.depth, depth, 1, 1),
        expanded=at + nodes,
    )
    return grown, _guided_logits(model, params, state, predicted)


def _refine(model: nn.Module, params, state: DrafterState, root, tokens, stale: Stale, predicted):
    batch, nodes = tokens.shape
    before = model.apply(params["drafter"], stale.features.astype(model.dtype), method="fuse")
    of_root = jnp.take_along_axis(state.features, root[None, :, None, None], axis=2)
    if predicted is not None:
        last = jnp.concatenate([of_root, predicted[:, :, :-1]], axis=2)
        before = jnp.where(stale.known[None, ..., None], before, last)
    before = jnp.concatenate([of_root, before[:, :, 1:]], axis=2)
    below = jnp.arange(1, nodes + 1, dtype=jnp.int32)[None]
    depth = jnp.take_along_axis(state.depth, root[:, None], axis=1) + below
    seen = jnp.take_along_axis(state.ancestors, root[:, None, None], axis=1)
    seen = jnp.broadcast_to(seen, (batch, nodes, seen.shape[-1]))
    causal = jnp.asarray(np.tri(nodes, dtype=bool))[None]
    predicted, _ = _run_below(model, params, state, before, tokens, depth, seen, causal)
    return _guided_logits(model, params, state, predicted), predicted


def _run_below(model: nn.Module, params, state: DrafterState, features, tokens, depth, seen, among):
    """Runs nodes below the root; returns their predicted features [G, B, M, D], and keys and values.

    Args:
        features: [G, B, M, D], before each node's token.
        depth: int32 [B, M], below the root.
        seen, among: bool [B, M, X] and [B, M, M], which expanded nodes and which new ones each node sees.
    """
    # The root is the last absorbed token.
    positions = (state.cache.length + state.count)[:, None] - 1 + depth
    span = jnp.arange(state.recent[0].shape[-2], dtype=jnp.int32)
    recent_mask = (span[None] < state.count[:, None])[None, :, None]
    predicted, (block,) = model.apply(
        params["drafter"],
        features,
        jnp.broadcast_to(tokens[None], (features.shape[0], *tokens.shape)),
        stream_rotary(model.config, state.cache.prefix_mask, positions),
        among[None],
        (state.cache.layers, (state.recent,), (state.nodes,)),
        (state.cache.mask, recent_mask, seen[None]),
    )
    return predicted, block


def _guided_logits(model: nn.Module, params, state: DrafterState, features):
    features = model.apply(params["drafter"], features, method="head_input")
    return apply_guidance(head_logits(features, params["head"]), state.cache.guidance)


KIND = DrafterKind(
    DrafterConfig,
    drafter_shapes,
    eagle_drafter,
    convert_drafter,
    DIALECT,
    usual=lambda target: DrafterConfig(**like_layers_of(target)),
)
