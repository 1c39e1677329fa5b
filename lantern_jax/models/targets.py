"""The target record of a transformer, and what the models of all families have in common.

Axes: G guidance rows, B batch, P prefix, N nodes, V codes, D width.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding import cache as kv_cache
from lantern_jax.decoding.protocols import Prefix, Target
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import stream_rotary
from lantern_jax.models.transformer import Dense, Transformer


class StreamModel(nn.Module):
    """A model that continues a prefix with codes. Parameters: tokens, transformer, head; ``taps``: see ``Transformer``.

    A family adds ``prefill`` (see ``transformer_target``) and ``check``, and sets ``first_code`` where prompts and
    codes share a vocabulary.
    """

    config: Any
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32
    taps: tuple[int, ...] = ()

    first_code = None

    def setup(self):
        config, types = self.config, (self.dtype, self.param_dtype)
        self.tokens = nn.Embed(config.vocab_size, config.dim, *types, nn.initializers.normal(0.02))
        self.transformer = Transformer(config.transformer, *types, self.taps)
        self.head = self.new_head()

    def new_head(self) -> nn.Module:
        """Returns the module that turns features into logits."""
        return Dense(self.config.num_codes, self.dtype, self.param_dtype, jnp.float32)

    def extend(self, tokens, positions, mask, cache: kv_cache.KVCache):
        """Runs new stream tokens on top of a cache, as ``transformer_target`` requires."""
        rows, batch = cache.prefix_mask.shape[:2]
        x = jnp.broadcast_to(self.tokens(tokens)[None], (rows, batch, tokens.shape[-1], self.config.dim))
        rotary = stream_rotary(self.config, cache.prefix_mask, positions)
        return self.transformer(x, rotary, mask[None], (cache.layers,), (cache.mask,))

    def logits(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns the codes' logits in float32."""
        return self.head(features)


def stream_target(
    model: type[StreamModel], config: Any, dtype: jnp.dtype = jnp.float32, taps: tuple[int, ...] = ()
) -> Target:
    """Returns the target record of a model class, as ``Family.target`` requires.

    Raises LanternError for a tap that is not a layer.
    """
    return _stream_target(model, config, jnp.dtype(dtype), tuple(taps))


@cache
def _stream_target(model: type[StreamModel], config: Any, dtype: jnp.dtype, taps: tuple[int, ...]) -> Target:
    layers = config.num_layers
    if any(not 0 <= tap <= layers for tap in taps):
        raise LanternError(f"taps {taps}: expected layers from 0 to {layers}, which is the final feature")
    return transformer_target(
        model(config, dtype, taps=taps), config.num_codes, config.num_tokens, config.forced_tokens,
        model.first_code, partial(model.check, config),
    )  # fmt: skip


def transformer_target(
    model: nn.Module,
    num_codes: int,
    num_tokens: int,
    forced_tokens: tuple[int, ...] | None = None,
    first_code: int | None = None,
    check: Callable[[Any], None] | None = None,
) -> Target:
    """Returns the target record of a model; conditioning leaves are [B, ...], the conditional rows.

    Args:
        model: a module with the methods
            prefill(conditioning, guided) -> (features [G, B, P, D], block, tokens int32, mask bool, positions int32,
            each [G, B, P]), where the module adds the unconditional row itself: G is 2 if guided, else 1,
            extend(tokens [B, N], positions [B, N], mask bool [B or 1, N, N], cache) -> (features [G, B, N, D],
            block), where positions count the stream's tokens from 0,
            logits(features [..., D]) -> float32 [..., V],
            and ``config.dim``, D. With ``taps`` (``Transformer``), tapped states precede its features: they become the
            record's features, and the logits do not change.
        num_codes, num_tokens, forced_tokens, first_code, check: as in ``Target``.

    Example:
        >>> from lantern_jax.families.llamagen.model import LlamaGen, LlamaGenConfig
        >>> from lantern_jax.models.targets import transformer_target
        >>> config = LlamaGenConfig(
        ...     dim=16, num_layers=1, num_heads=2, vocab_size=64, grid=4, num_labels=11
        ... )
        >>> target = transformer_target(LlamaGen(config), num_codes=64, num_tokens=16)
        >>> target.vocab_size, target.num_tokens
        (64, 16)
    """
    dim, tapped = model.config.dim, bool(getattr(model, "taps", ()))

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
        depth, ancestors = batched(depth, ancestors)
        positions = cache.length[:, None] + depth
        cache = cache.replace(visible=visible)
        states, block = model.apply(params, tokens, positions, ancestors, cache, method="extend")
        features, final = split(states)
        logits = model.apply(params, final, method="logits")
        return apply_guidance(logits, cache.guidance), features, block

    return Target(prefill, score, kv_cache.commit, num_codes, num_tokens, forced_tokens, first_code, check)


def batched(depth: Int[Array, "*B N"], ancestors: Bool[Array, "*B N N"]) -> tuple[Array, Array]:
    """Adds an axis of sequences to the nodes of a tree that all sequences share."""
    depth, ancestors = jnp.asarray(depth, jnp.int32), jnp.asarray(ancestors)
    depth = depth[None] if depth.ndim == 1 else depth
    return depth, ancestors[None] if ancestors.ndim == 2 else ancestors
