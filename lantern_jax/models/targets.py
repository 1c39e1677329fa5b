"""The target record of a transformer that implements three methods: one decoding step for every model family.

Axes: G guidance rows, B batch, P prefix, N nodes, V codes, D width.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from lantern_jax.decoding import cache as kv_cache
from lantern_jax.decoding.protocols import Prefix, Target
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.io.errors import LanternError


def check_taps(taps: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The taps as a tuple. Raises ValueError where one is no layer."""
    taps = tuple(taps)
    if any(not 0 <= tap <= num_layers for tap in taps):
        raise LanternError(f"taps {taps}: expected layers from 0 to {num_layers}, which is the final feature")
    return taps


def transformer_target(
    model: nn.Module,
    num_codes: int,
    num_tokens: int,
    forced_tokens: tuple[int, ...] | None = None,
    first_code: int | None = None,
    check: Callable[[Any], None] | None = None,
) -> Target:
    """The target record of a model; conditioning leaves are [B, ...], the conditional rows.

    Args:
        model: a module with the methods
            prefill(conditioning, guided) -> (features [G, B, P, D], block, tokens int32, mask bool, positions int32,
            each [G, B, P]), where the module adds the unconditional row itself: G is 2 if guided, else 1,
            extend(tokens [B, N], positions [B, N], mask bool [B or 1, N, N], cache) -> (features [G, B, N, D],
            block), where positions count the stream's tokens from 0,
            logits(features [..., D]) -> float32 [..., V],
            and ``config.dim``, D. A model with ``taps`` (``Transformer``) has their states in front of its features:
            the record then gives out those, and the logits stay what they are.
        num_codes, num_tokens, forced_tokens: V, T and the forced ids of the stream, as in ``Target``.
        first_code, check: of prompts, as in ``Target``.

    Example:
        >>> config = lantern_jax.LlamaGenConfig(
        ...     dim=16, num_layers=1, num_heads=2, vocab_size=64, grid=4, num_labels=11
        ... )
        >>> target = lantern_jax.transformer_target(lantern_jax.LlamaGen(config), num_codes=64, num_tokens=16)
        >>> target.vocab_size, target.num_tokens
        (64, 16)
    """
    dim, tapped = model.config.dim, bool(model.taps)

    def split(states):
        return (states[..., :-dim], states[..., -dim:]) if tapped else (states, states)

    def prefill(params, conditioning, guidance, slots):
        if check is not None:
            check(conditioning)
        guided = guidance is not None
        states, block, tokens, valid, positions = model.apply(params, conditioning, guided, method="prefill")
        features, final = split(states)
        logits = model.apply(params, final[:, :, -1], method="logits")
        cache = kv_cache.new_cache(block, valid, guidance, slots)
        return cache, apply_guidance(logits, guidance), Prefix(features, tokens, valid, positions, guidance)

    def score(params, cache, tokens, depth, ancestors, visible=None):
        depth = jnp.asarray(depth, jnp.int32)
        depth = depth[None] if depth.ndim == 1 else depth
        ancestors = jnp.asarray(ancestors)
        ancestors = ancestors[None] if ancestors.ndim == 2 else ancestors
        positions = cache.length[:, None] + depth
        cache = cache.replace(visible=visible)
        states, block = model.apply(params, tokens, positions, ancestors, cache, method="extend")
        features, final = split(states)
        logits = model.apply(params, final, method="logits")
        return apply_guidance(logits, cache.guidance), features, block

    return Target(prefill, score, kv_cache.commit, num_codes, num_tokens, forced_tokens, first_code, check)
