"""Chameleon (arXiv 2405.09818) as Anole-7B and Lumina-mGPT-7B use it: text tokens in, image tokens out.

Token ids are *stream ids*: the codes first, in the codebook's order, then the row end and the image end, then the
rest of the published vocabulary (``lantern_jax.text.chameleon``). The head has the codes' columns only: other ids
are never sampled, so their logits are never computed.

Axes: G guidance rows, B batch, P prefix, N nodes, T stream tokens, V codes, D width, E head width.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.cache import KVCache
from lantern_jax.decoding.concrete import check_prompts
from lantern_jax.decoding.protocols import Target
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import check_sizes
from lantern_jax.models.targets import check_taps, transformer_target
from lantern_jax.models.transformer import (
    Dense,
    Transformer,
    TransformerConfig,
    line_rotary,
    padded_causal_mask,
)

LAYOUTS = ("anole", "lumina")


@dataclass(frozen=True)
class ChameleonConfig:
    """A Chameleon target. The defaults are those of the 7B models.

    Attributes:
        dim, num_layers, num_heads, hidden_dim: D, layers, heads, feed-forward width.
        vocab_size: rows of the embedding table, text included.
        num_codes: V, size of the codebook.
        grid: cells a side: 32 (512 px) for Anole, 48 (768 px) for Lumina-mGPT-7B-768.
        layout: the stream of a picture. "anole": grid * grid codes. "lumina": each row of codes is closed by the
            row end, the last one also by the image end; both are forced.

    Example:
        >>> config = lantern_jax.ChameleonConfig(grid=48, layout="lumina")
        >>> config.num_tokens, config.row_end, config.image_end
        (2353, 8192, 8193)
    """

    dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    hidden_dim: int = 11008
    vocab_size: int = 65536
    num_codes: int = 8192
    grid: int = 32
    layout: str = "anole"
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    def __post_init__(self):
        check_sizes(self)
        if self.layout not in LAYOUTS:
            raise errors.unknown("layout", self.layout, LAYOUTS)
        if self.vocab_size < self.num_codes + 2:
            raise LanternError(
                f"vocab_size {self.vocab_size} has no room for {self.num_codes} codes, row end and image end"
            )

    @property
    def row_end(self) -> int:
        """Stream id of the token that closes a row."""
        return self.num_codes

    @property
    def image_end(self) -> int:
        """Stream id of the token that closes a picture."""
        return self.num_codes + 1

    @property
    def forced_tokens(self) -> tuple[int, ...] | None:
        """The forced id of each stream position, -1 where it is free; None when all are free."""
        if self.layout == "anole":
            return None
        return ((-1,) * self.grid + (self.row_end,)) * self.grid + (self.image_end,)

    @property
    def num_tokens(self) -> int:
        return self.grid * self.grid if self.layout == "anole" else self.grid * (self.grid + 1) + 1

    @property
    def shared_with_drafter(self) -> dict[str, Any]:
        """Settings of a ``DrafterConfig`` that this target decides."""
        return {"dim": self.dim, "vocab_size": self.vocab_size, "rotary": "line"}

    @property
    def transformer(self) -> TransformerConfig:
        return TransformerConfig(
            self.dim, self.num_layers, self.num_heads, self.hidden_dim, self.norm_eps, qk_norm="layer"
        )


@flax.struct.dataclass
class TokenConditioning:
    """Prompts as stream ids, left-padded; each row has its own length.

    Attributes:
        tokens: int32 [B, P].
        mask: bool [B, P], False at padding.

    Example:
        >>> tokens, mask = np.array([[0, 0, 7], [4, 5, 6]]), np.array([[False, False, True], [True, True, True]])
        >>> prompts = lantern_jax.TokenConditioning(tokens, mask)
        >>> prompts.mask.sum(axis=1)  # their lengths
        array([1, 3])
    """

    tokens: Int[Array, "*rows P"]
    mask: Bool[Array, "*rows P"]


def unconditional_row(conditioning: TokenConditioning, layout: str) -> TokenConditioning:
    """The unconditional rows [B, P] of prompts [B, P]: what the layout's model was trained with for no prompt.

    A prompt ends with the layout's own tokens. "lumina": the image start and the two size tokens stay, the rest is
    masked. "anole": the start of the sequence, which a prompt begins with, then the image start.
    """
    tokens, mask = jnp.asarray(conditioning.tokens), conditioning.mask
    kept = 3 if layout == "lumina" else 2
    if layout == "anole":
        begin = jnp.take_along_axis(tokens, jnp.argmax(mask, axis=-1, keepdims=True), axis=-1)
        tokens = jnp.concatenate([tokens[..., :-2], begin, tokens[..., -1:]], axis=-1)
    last = np.arange(tokens.shape[-1]) >= tokens.shape[-1] - kept
    return TokenConditioning(tokens, jnp.broadcast_to(last[(None,) * (tokens.ndim - 1)], tokens.shape))


class Chameleon(nn.Module):
    """The model. Parameters: tokens (all ids), transformer, head (the codes' columns).

    ``taps`` as in ``Transformer``.

    Example:
        >>> config = lantern_jax.ChameleonConfig(
        ...     dim=16, num_layers=1, num_heads=2, hidden_dim=32, vocab_size=80, num_codes=64, grid=4
        ... )
        >>> tokens = jnp.zeros((1, 5), jnp.int32)
        >>> prompt = lantern_jax.TokenConditioning(tokens, tokens == 0)
        >>> model = lantern_jax.Chameleon(config)
        >>> (features, logits), _ = jax.eval_shape(model.init_with_output, jax.random.key(0), prompt)
        >>> features.shape, logits.shape
        ((1, 5, 16), (1, 5, 64))
    """

    config: ChameleonConfig
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32
    taps: tuple[int, ...] = ()

    def setup(self):
        config, init = self.config, nn.initializers.normal(0.02)
        self.tokens = nn.Embed(config.vocab_size, config.dim, self.dtype, self.param_dtype, init)
        self.transformer = Transformer(config.transformer, self.dtype, self.param_dtype, self.taps)
        self.head = Dense(config.num_codes, self.dtype, self.param_dtype, jnp.float32)

    def prefill(self, conditioning: TokenConditioning, guided: bool):
        """Runs prompts, as ``transformer_target`` asks."""
        rows = [conditioning]
        if guided:
            rows.append(unconditional_row(conditioning, self.config.layout))
        return self.run(jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))

    def run(self, conditioning: TokenConditioning):
        """Runs whole rows: features [..., P, D], block, tokens, mask and each row's own positions [..., P]."""
        valid = conditioning.mask
        positions = jnp.maximum(jnp.cumsum(valid, axis=-1, dtype=jnp.int32) - 1, 0)
        features, block = self.transformer(
            self.tokens(conditioning.tokens), self._rotary(positions), padded_causal_mask(valid)
        )
        return features, block, conditioning.tokens, valid, positions

    def extend(self, tokens, positions, mask, cache: KVCache):
        """New stream tokens on top of a cache, as ``transformer_target`` asks."""
        rows, batch = cache.prefix_mask.shape[:2]
        start = jnp.sum(cache.prefix_mask, axis=-1, dtype=jnp.int32)
        x = jnp.broadcast_to(self.tokens(tokens)[None], (rows, batch, tokens.shape[-1], self.config.dim))
        rotary = self._rotary(start[..., None] + positions[None])
        return self.transformer(x, rotary, mask[None], (cache.layers,), (cache.mask,))

    def logits(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """The codes' logits in float32."""
        return self.head(features)

    def __call__(self, conditioning: TokenConditioning):
        """Hidden states [..., P, D] after the final norm and logits [..., P, V] of whole sequences."""
        features = self.run(conditioning)[0]
        return features, self.logits(features)

    def _rotary(self, positions):
        return line_rotary(positions, self.config.transformer.head_dim, self.config.rope_base)


def chameleon_target(
    config: ChameleonConfig, dtype: jnp.dtype = jnp.float32, taps: tuple[int, ...] = ()
) -> Target:
    """The target record of a Chameleon model; conditioning is a TokenConditioning [B, P].

    ``taps`` as in ``llamagen_target``. The same arguments return the same record, so compiled programs are reused.
    Raises ValueError for a tap that is no layer.

    Example:
        >>> target = lantern_jax.chameleon_target(lantern_jax.ChameleonConfig(grid=48, layout="lumina"))
        >>> target.forced_tokens[48], target.forced_tokens[-1]  # row end, image end
        (8192, 8193)
    """
    return _target(config, dtype, check_taps(taps, config.num_layers))


@cache
def _target(config: ChameleonConfig, dtype: jnp.dtype, taps: tuple[int, ...]) -> Target:
    return transformer_target(
        Chameleon(config, dtype, taps=taps), config.num_codes, config.num_tokens, config.forced_tokens,
        first_code=0, check=partial(check_prompts, config.vocab_size),
    )  # fmt: skip
