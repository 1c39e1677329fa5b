"""The encoder of T5 1.1 and Flan-T5 (arXiv 1910.10683, 2210.11416), LlamaGen's text encoder.

Axes: B batch, P tokens, D width, H heads, E head width.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import check_sizes
from lantern_jax.models.transformer import RMSNorm


@dataclass(frozen=True)
class T5Config:
    """A T5 encoder. The defaults are Flan-T5-XL's.

    Attributes:
        dim, num_layers, num_heads, head_dim: D, layers, H, E; H * E need not be D.
        hidden_dim: width of the gated feed-forward layers.
        vocab_size: rows of the embedding table.
        num_buckets, max_distance: of the relative position bias, which all layers share.
    """

    dim: int = 2048
    num_layers: int = 24
    num_heads: int = 32
    head_dim: int = 64
    hidden_dim: int = 5120
    vocab_size: int = 32128
    num_buckets: int = 32
    max_distance: int = 128
    norm_eps: float = 1e-6

    def __post_init__(self):
        check_sizes(self)
        if self.num_buckets % 4 or self.max_distance <= self.num_buckets // 4:
            raise LanternError(
                f"num_buckets {self.num_buckets} with max_distance {self.max_distance}: give a multiple of 4, "
                "and a distance beyond a quarter of it"
            )


def t5_shapes(config: T5Config) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``T5Encoder(config).init`` makes."""
    tokens, mask = jax.ShapeDtypeStruct((1, 1), np.int32), jax.ShapeDtypeStruct((1, 1), np.bool_)
    return jax.eval_shape(T5Encoder(config).init, jax.random.key(0), tokens, mask)


def relative_buckets(length: int, num_buckets: int, max_distance: int) -> Int[np.ndarray, "P P"]:
    """Returns the int32 bucket of each (query, key) pair.

    Half of the buckets are for keys after the query. Within each half, the first half of the buckets hold one distance
    each; the others are spaced logarithmically up to ``max_distance``, and the last takes everything beyond.
    """
    offset = np.arange(length)[None, :] - np.arange(length)[:, None]
    half, exact = num_buckets // 2, num_buckets // 4
    distance = np.abs(offset)
    # float32, as in training: a distance of 16 lies on the edge of a bucket.
    ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
    steps = np.log(ratio) / np.float32(np.log(max_distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + steps.astype(np.int32), half - 1)
    return (np.where(offset > 0, half, 0) + np.where(distance < exact, distance, far)).astype(np.int32)


class T5Encoder(nn.Module):
    """The encoder. Parameters: tokens, relative_bias [buckets, H], layer_0 ..., norm; nothing has a bias.

    Call:
        tokens: int32 [B, P].
        mask: bool [B, P], False at padding, which no position sees.

    Returns:
        features [B, P, D] after the final norm; meaningless at padding.
    """

    config: T5Config
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens: Int[Array, "B P"], mask: Bool[Array, "B P"]) -> Float[Array, "B P D"]:
        config, init = self.config, nn.initializers.normal(1.0)
        x = nn.Embed(config.vocab_size, config.dim, self.dtype, self.param_dtype, init, name="tokens")(tokens)
        shape = (config.num_buckets, config.num_heads)
        table = self.param("relative_bias", nn.initializers.normal(0.1), shape, self.param_dtype)
        buckets = relative_buckets(tokens.shape[-1], config.num_buckets, config.max_distance)
        bias = jnp.transpose(table.astype(jnp.float32)[buckets], (2, 0, 1))
        for i in range(config.num_layers):
            x = T5Layer(config, self.dtype, self.param_dtype, name=f"layer_{i}")(x, bias, mask)
        return RMSNorm(config.norm_eps, self.param_dtype, name="norm")(x)


class T5Layer(nn.Module):
    """Attention without scaling, its softmax in float32, then a feed-forward layer gated by tanh-GELU."""

    config: T5Config
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: Float[Array, "B P D"], bias: Float[Array, "H P P"], mask: Bool[Array, "B P"]
    ) -> Float[Array, "B P D"]:
        config = self.config

        def dense(width, name):
            return nn.Dense(
                width, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype, name=name,
                kernel_init=nn.initializers.variance_scaling(1.0, "fan_in", "normal"),
            )  # fmt: skip

        hidden = RMSNorm(config.norm_eps, self.param_dtype, name="attention_norm")(x)
        queries, keys, values = (
            dense(config.num_heads * config.head_dim, name)(hidden).reshape(
                *x.shape[:-1], config.num_heads, config.head_dim
            )
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bnhe,bshe->bhns", queries, keys, preferred_element_type=jnp.float32) + bias[None]
        # Not -inf: a row without tokens must not be NaN.
        scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        attended = jnp.einsum("bhns,bshe->bnhe", weights, values)
        x = x + dense(config.dim, "out")(attended.reshape(*x.shape[:-1], -1))

        hidden = RMSNorm(config.norm_eps, self.param_dtype, name="feed_forward_norm")(x)
        gate = nn.gelu(dense(config.hidden_dim, "gate")(hidden), approximate=True)
        return x + dense(config.dim, "down")(gate * dense(config.hidden_dim, "up")(hidden))
