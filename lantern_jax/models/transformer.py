"""The one transformer of the library: LlamaGen, Chameleon and EAGLE-style drafters are configurations of it.

Attention runs over several places under one softmax: the *past* (the cache's slots, which hold committed tokens only;
for a drafter also the nodes expanded before) and the *block* (the N new positions, which see each other through a
mask). Joining the arrays first would copy the whole cache in every layer.

Axes: ... leading rows (G guidance x B batch, or B alone in training), N new positions, P prefix, S cache slots,
H heads, K key-value heads, Q queries of a group (H / K), E head width, D model width, F feed-forward width.
"""

import functools
import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lantern_jax.devices.partition import shards, split, whole
from lantern_jax.kernels import tpu_attention
from lantern_jax.kernels.attention import attend_kernel
from lantern_jax.kernels.joined import attend_joined
from lantern_jax.kernels.ways import attention_way
from lantern_jax.models.quantization import INPUT_AXES, SCALE, scaled
from lantern_jax.models.transformer_config import ACTIVATIONS, TransformerConfig

# Keys and values of one layer, each [..., K, S, E], with the mask of queries that see them.
Place = tuple[Float[Array, "*rows K S E"], Float[Array, "*rows K S E"], Bool[Array, "*rows N S"]]

# Products of fewer rows or columns are compiled for TPUs as sums over the whole cache, not as matrix products.
_TPU_ROWS = 8


def rotate(
    x: Float[Array, "*rows H N E"], rotary: Float[Array, "*rows N E/2 2"]
) -> Float[Array, "*rows H N E"]:
    """Rotates the pairs (e, e + E/2) of each head. Converters bring interleaved checkpoints into this layout."""
    cos, sin = rotary[..., None, :, :, 0], rotary[..., None, :, :, 1]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def rotate_by_product(
    x: Float[Array, "*rows H N E"], rotary: Float[Array, "*rows N E/2 2"]
) -> Float[Array, "*rows H N E"]:
    """Computes ``rotate``, whose halves change places by a product with a permutation: every sum has one term."""
    half = x.shape[-1] // 2
    swap = np.roll(np.eye(x.shape[-1], dtype=np.float32), half, axis=1)
    swapped = jnp.einsum(
        "...e,ef->...f",
        x,
        jnp.asarray(swap, x.dtype),
        precision="highest",
        preferred_element_type=jnp.float32,
    )
    cos, sin = rotary[..., None, :, :, 0], rotary[..., None, :, :, 1]
    cos, sin = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    return (x.astype(jnp.float32) * cos + swapped * sin).astype(x.dtype)


def rotate_and_attend(
    qkv: Float[Array, "*rows N Q+2 K E"],
    rotary: Float[Array, "*rows N E/2 2"],
    block_mask: Bool[Array, "*rows N N"],
    past: tuple[tuple[Array, Array], ...],
    past_masks: tuple[Bool[Array, "*rows N S"], ...],
) -> tuple[Float[Array, "*rows N H E"], tuple[Array, Array]]:
    """Attends from the block's positions to the past and to each other.

    Args:
        qkv: each group's queries, then its keys and its values, not yet rotated; the others as in ``Transformer``.

    Returns:
        the attention's output, and the block's rotated keys and its values, each [..., K, N, E].
    """
    arguments = qkv, rotary, block_mask, tuple(past), tuple(past_masks)
    ways = {"tpu": _by_tall_products, "default": _by_products}
    if shards() == 1:
        way = attention_way(qkv)
        ways |= {"cuda": {"triton": _by_kernel, "joined": attend_joined}[way]} if way else {}
        ways |= {"tpu": _by_tpu_kernel} if tpu_attention.fits(qkv) else {}
    return jax.lax.platform_dependent(*arguments, **ways)


# Layers of one shape share one trace.
@partial(jax.jit, inline=True, static_argnames=("rotate", "total", "least"))
def _by_products(qkv, rotary, block_mask, past, past_masks, rotate=rotate, total=None, least=1):
    count, groups = qkv.shape[-4], qkv.shape[-3] - 2
    parts = [jnp.swapaxes(qkv[..., i, :, :], -2, -3) for i in range(groups + 2)]
    # Queries of a group are more rows that see the same keys.
    queries, keys, values = _beside(parts[:groups], -2), *parts[groups:]
    queries, keys = rotate(queries, _beside([rotary] * groups, -3)), rotate(keys, rotary)
    queries, keys, values = (split(states, -3) for states in (queries, keys, values))
    places = [(*keys_values, mask) for keys_values, mask in zip(past, past_masks, strict=True)]
    places = [(*states, _of_groups(mask, groups)) for *states, mask in (*places, (keys, values, block_mask))]
    places = [(*states, _taller(mask, least)) for *states, mask in places]
    attended = attend(_taller(queries, least), *places, total=total or total_by_sums)
    attended = attended[..., : groups * count, :]
    if groups == 1:
        return jnp.swapaxes(attended, -2, -3), (keys, values)
    attended = jnp.moveaxis(attended.reshape(*attended.shape[:-2], groups, count, -1), -2, -4)
    return attended.reshape(*attended.shape[:-3], -1, attended.shape[-1]), (keys, values)


def _beside(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def _of_groups(mask: Bool[Array, "*rows N S"], groups: int) -> Bool[Array, "*rows rows_of_groups S"]:
    """Repeats a mask for every query of a group, but one row that stands for all."""
    return mask if mask.shape[-2] == 1 else _beside([mask] * groups, -2)


def _by_tall_products(*arguments):
    """Does the same for TPUs, whose compiler makes matrix products of eight rows and more alone, moves the halves of a
    rotation at the price of a product each, and sums along the last axis at the price of several."""
    return _by_products(*arguments, rotate=rotate_by_product, total=total_by_product, least=_TPU_ROWS)


def _taller(rows, least: int):
    """Repeats the last row until there are ``least``, but where one row stands for all (a mask's)."""
    count = rows.shape[-2]
    if count == 0 or count >= least or (rows.dtype == bool and count == 1):
        return rows
    last = jnp.broadcast_to(rows[..., -1:, :], (*rows.shape[:-2], least - count, rows.shape[-1]))
    return jnp.concatenate([rows, last], axis=-2)


@jax.custom_jvp
def _by_kernel(*arguments):
    return attend_kernel(*arguments)


@jax.custom_jvp
def _by_tpu_kernel(*arguments):
    return tpu_attention.attend_kernel(*arguments)


for _way in (_by_kernel, _by_tpu_kernel):
    _way.defjvp(lambda primals, tangents: jax.jvp(_by_products, primals, tangents))


def total_by_sums(weights: Float[Array, "*rows H N S"], place: Place) -> Float[Array, "*rows H N 1"]:
    """Adds up the weights that each query gives to a place's keys."""
    return jnp.sum(weights, axis=-1, keepdims=True)


def total_by_product(weights: Float[Array, "*rows H N S"], place: Place) -> Float[Array, "*rows H N 1"]:
    """Computes ``total_by_sums`` of the weights that the values are given, as rounded as they are, by a product.

    Its columns tell which keys any query sees: the others weigh nothing. Columns of ones, or a single one, would be
    compiled as sums.
    """
    _, values, mask = place
    seen = jnp.any(mask, axis=-2)[..., None, :, None].astype(values.dtype)
    seen = jnp.broadcast_to(seen, (*values.shape[:-1], _TPU_ROWS))
    sums = jnp.einsum(
        "...ns,...se->...ne", weights.astype(values.dtype), seen, preferred_element_type=jnp.float32
    )
    return sums[..., :1]


def attend(
    queries: Float[Array, "*rows H N E"], *places: Place, total: Callable = total_by_sums
) -> Float[Array, "*rows H N E"]:
    """Attends to several places of keys under one float32 softmax.

    Args:
        queries: rotated queries.
        places: (keys [..., H, S, E], values [..., H, S, E], mask bool [..., N, S], True where a key is seen).
            Every query must see a key somewhere; a place may be empty (S = 0).
        total: adds up the weights of a place.
    """
    queries = queries * np.asarray(queries.shape[-1] ** -0.5, queries.dtype)
    scores = [
        jnp.where(
            mask[..., None, :, :],
            jnp.einsum("...ne,...se->...ns", queries, keys, preferred_element_type=jnp.float32),
            -jnp.inf,
        )
        for keys, _, mask in places
    ]
    tops = [jnp.max(part, axis=-1, keepdims=True, initial=-jnp.inf) for part in scores]
    top = functools.reduce(jnp.maximum, tops)
    weights = [jnp.exp(part - top) for part in scores]
    whole_weight = sum(total(part, place) for part, place in zip(weights, places, strict=True))
    out = sum(
        jnp.einsum(
            "...ns,...se->...ne", part.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        for part, (_, values, _) in zip(weights, places, strict=True)
    )
    return (out / whole_weight).astype(queries.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm with float32 statistics; a scale with an ``offset`` is applied in float32 too."""

    eps: float
    param_dtype: jnp.dtype = jnp.float32
    offset: int = 0

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        if self.offset:
            return (wide * jnp.broadcast_to(self.offset + scale.astype(jnp.float32), x.shape)).astype(x.dtype)
        return wide.astype(x.dtype) * jnp.broadcast_to(scale.astype(x.dtype), x.shape)


class HeadNorm(nn.Module):
    """LayerNorm over each head's width, with a scale and bias per head (Chameleon); float32 statistics."""

    eps: float
    param_dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rows N H E"]) -> Float[Array, "*rows N H E"]:
        shape = x.shape[-2:]
        scale = self.param("scale", nn.initializers.ones, shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        scale, bias = (jnp.broadcast_to(leaf.astype(jnp.float32), x.shape) for leaf in (scale, bias))
        return (wide * scale + bias).astype(x.dtype)


class Dense(nn.Module):
    """A matrix product summed in float32; ``out_dtype`` None means ``dtype``.

    The kernel's axes are the last ``inputs`` of x, which are summed over, and ``features``. It is never reshaped, so a
    kernel that is split over devices stays split. With a ``kernel_scale`` beside it, it holds integers
    (``quantization``).

    The sum is float32 for XLA's CPU compiler as well: for products of bfloat16 to bfloat16 it would convert all
    matrices of a model to float32 ahead of the decoding loop, a second copy of the parameters, twice as large.
    """

    features: int | tuple[int, ...]
    dtype: jnp.dtype
    param_dtype: jnp.dtype
    out_dtype: jnp.dtype | None = None
    use_bias: bool = False
    kernel_init: nn.initializers.Initializer = nn.initializers.normal(0.02)
    inputs: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "*rows_and_inputs"]) -> Float[Array, "*rows_and_features"]:
        features = (self.features,) if isinstance(self.features, int) else self.features
        shape = (*x.shape[-self.inputs :], *features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        product = _contracted(x, kernel, self.inputs)
        product = scaled(product, self.variables["params"].get(SCALE))
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, features, self.param_dtype)
            product = product + jnp.broadcast_to(bias.astype(jnp.float32), product.shape)
        return product.astype(self.out_dtype or self.dtype)


def _contracted(x, kernel, inputs: int):
    """Multiplies, on TPUs with one axis for heads and widths where a kernel reads them so: arrays lie in tiles of 128
    lanes there, and heads of 64 would leave half of each empty."""
    product = partial(jnp.tensordot, axes=inputs, preferred_element_type=jnp.float32)
    width = kernel.shape[inputs - 1 if inputs > 1 else -1]
    if shards() > 1 or kernel.ndim == 2 or width != tpu_attention.WIDTH:
        return product(x, kernel)
    return jax.lax.platform_dependent(x, kernel, tpu=partial(_by_matrix, inputs), default=product)


def _by_matrix(inputs: int, x, kernel):
    rows, features = x.shape[: x.ndim - inputs], kernel.shape[inputs:]
    height, width = math.prod(kernel.shape[:inputs]), math.prod(features)
    x, matrix = x.reshape(*rows, height), kernel.reshape(height, width)
    return jnp.dot(x, matrix, preferred_element_type=jnp.float32).reshape(*rows, *features)


class Layer(nn.Module):
    """One Llama layer; returns the new activations and this block's keys and values.

    ``attention_input`` [..., N, any width], already normed, is what attention reads instead of x (EAGLE-3).

    Kernels: qkv [D, Q + 2, K, E] (the queries of each group, keys, values), out [H, E, D], gate_up [D, 2, F] (gate,
    up), down [F, D]: a mesh's model axis can split them along (key-value) heads and feed-forward columns.
    """

    config: TransformerConfig
    input_norm: bool
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, rotary, block_mask, past, past_masks, attention_input=None):
        config = self.config

        def norm(name):
            return RMSNorm(config.norm_eps, self.param_dtype, config.norm_offset, name=name)

        def dense(features, name):
            return Dense(features, self.dtype, self.param_dtype, inputs=INPUT_AXES[name], name=name)

        hidden = attention_input
        if hidden is None:
            hidden = norm("attention_norm")(x) if self.input_norm else x
        qkv = dense((config.groups + 2, config.key_heads, config.head_dim), "qkv")(hidden)
        if config.qk_norm:
            head_norm = {"rms": RMSNorm, "layer": HeadNorm}[config.qk_norm]
            normed = [
                head_norm(config.norm_eps, self.param_dtype, name=name)(qkv[..., i, :, :])
                for i, name in enumerate(("query_norm", "key_norm"))
            ]
            qkv = jnp.stack([*normed, qkv[..., 2, :, :]], axis=-3)
        attended, block = rotate_and_attend(qkv, rotary, block_mask, past, past_masks)
        x = whole(x + dense(config.dim, "out")(attended))

        gate_up = dense((2, config.hidden_dim), "gate_up")(norm("feed_forward_norm")(x))
        gate, up = gate_up[..., 0, :], gate_up[..., 1, :]
        x = whole(x + dense(config.dim, "down")(ACTIVATIONS[config.activation](gate) * up))
        return x, block


class Transformer(nn.Module):
    """A stack of layers over new positions, with an optional past.

    Call:
        x: [..., N, D] input embeddings.
        rotary: float32 [..., N, E/2, 2] cosine and sine of each position.
        block_mask: bool [..., N, N], row sees column (self included).
        past: for each place of the past, for each layer, its keys and values [..., K, S, E].
        past_masks: for each place of the past, bool [..., N, S]: which slots a row sees.

    Attributes:
        taps: layers whose input is returned too; the number of layers stands for the final features.

    Returns:
        features [..., N, D] (after the final norm, if there is one), with taps [..., N, (taps + 1) D]: the inputs
        of those layers, then the features; and each layer's new keys and values.
    """

    config: TransformerConfig
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32
    taps: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x, rotary, block_mask, past=(), past_masks=()):
        block, states, x = [], [], whole(x)
        for i in range(self.config.num_layers):
            states.append(x)
            layer = Layer(
                self.config, self.config.input_norm or i > 0, self.dtype, self.param_dtype, name=f"layer_{i}"
            )
            layer_past = [place[i] for place in past]
            x, keys_values = layer(x, rotary, block_mask, layer_past, past_masks)
            block.append(keys_values)
        if self.config.final_norm:
            x = RMSNorm(self.config.norm_eps, self.param_dtype, self.config.norm_offset, name="norm")(x)
        if self.taps:
            states.append(x)
            x = jnp.concatenate([*(states[tap] for tap in self.taps), x], axis=-1)
        return x, tuple(block)
