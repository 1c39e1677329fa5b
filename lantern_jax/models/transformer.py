"""The one transformer of the library: LlamaGen, Chameleon and EAGLE-style drafters are configurations of it.

Attention runs over several places under one softmax: the *past* (the cache's slots, which hold committed tokens only;
for a drafter also the nodes expanded before) and the *block* (the N new positions, which see each other through a
mask). Joining the arrays first would copy the whole cache in every layer.

Axes: ... leading rows (G guidance x B batch, or B alone in training), N new positions, P prefix, S cache slots,
H heads, K key-value heads, Q queries of a group (H / K), E head width, D model width, F feed-forward width.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial, wraps
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lantern_jax.devices.partition import shards, whole
from lantern_jax.devices.products import EIGEN_ROWS, dot_by_columns
from lantern_jax.kernels.ways import by_platform
from lantern_jax.models.attention import rotate_and_attend
from lantern_jax.models.quantization import INPUT_AXES, SCALE, scaled
from lantern_jax.models.transformer_config import ACTIVATIONS, TransformerConfig


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


def layers_alike(shapes: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Makes a function that traces a config's model for shapes trace only two layers: the rest are like the second."""

    @wraps(shapes)
    def traced(*arguments: Any) -> dict[str, Any]:
        *others, config = arguments
        if config.num_layers <= 2:
            return shapes(*arguments)
        made = shapes(*others, replace(config, num_layers=2))
        layers = made["params"]["transformer"]
        layers |= {f"layer_{i}": layers["layer_1"] for i in range(2, config.num_layers)}
        return made

    return traced


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


def _contracted(
    x: Float[Array, "*rows_and_inputs"], kernel: Float[Array, "*inputs_and_features"], inputs: int
):
    """Multiplies [*rows, *inputs] by [*inputs, *features]; on CPUs, a left side of few rows is stored by columns."""
    ways = {"default": partial(jnp.tensordot, axes=inputs, preferred_element_type=jnp.float32)}
    is_narrow = math.prod(x.shape[: x.ndim - inputs]) in EIGEN_ROWS
    if shards() == 1 and x.dtype == jnp.float32 and is_narrow:
        ways["cpu"] = partial(_by_columns, inputs)
    return by_platform(x, kernel, **ways)


def _by_columns(inputs: int, x, kernel):
    """Multiplies as ``_contracted`` does, by a product of matrices: [..., K] and [K, N]."""
    rows, features = x.shape[: x.ndim - inputs], kernel.shape[inputs:]
    height, width = math.prod(kernel.shape[:inputs]), math.prod(features)
    product = dot_by_columns(x.reshape(*rows, height), kernel.reshape(height, width))
    return product.reshape(*rows, *features)


class Layer(nn.Module):
    """One Llama layer; returns the new activations and this block's keys and values.

    Attention reads ``attention_input`` [..., N, any width], already normed, instead of x if it is given (EAGLE-3).

    Kernels: qkv [D, Q + 2, K, E] (the queries of each group, keys, values), out [H, E, D], gate_up [D, 2, F] (gate,
    up), down [F, D]: a mesh's model axis can split them along (key-value) heads and feed-forward columns. Biases, if
    there are any: qkv [Q + 2, K, E].
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

        def dense(features, name, use_bias=False):
            types = self.dtype, self.param_dtype
            return Dense(features, *types, use_bias=use_bias, inputs=INPUT_AXES[name], name=name)

        def added(x, change, name):
            return whole(x + (norm(name)(change) if config.output_norms else change))

        hidden = attention_input
        if hidden is None:
            hidden = norm("attention_norm")(x) if self.input_norm else x
        groups = config.groups
        qkv = dense((groups + 2, config.key_heads, config.head_dim), "qkv", config.qkv_bias)(hidden)
        if config.qk_norm:
            head_norm = {"rms": RMSNorm, "layer": HeadNorm}[config.qk_norm]
            parts = {"query_norm": qkv[..., :groups, :, :], "key_norm": qkv[..., groups : groups + 1, :, :]}
            normed = [head_norm(config.norm_eps, self.param_dtype, name=name)(parts[name]) for name in parts]
            qkv = jnp.concatenate([*normed, qkv[..., groups + 1 :, :, :]], axis=-3)
        attended, block = rotate_and_attend(qkv, rotary, block_mask, past, past_masks)
        x = added(x, dense(config.dim, "out")(attended), "attention_output_norm")

        gate_up = dense((2, config.hidden_dim), "gate_up")(norm("feed_forward_norm")(x))
        gate, up = gate_up[..., 0, :], gate_up[..., 1, :]
        change = dense(config.dim, "down")(ACTIVATIONS[config.activation](gate) * up)
        return added(x, change, "feed_forward_output_norm"), block


class Transformer(nn.Module):
    """A stack of layers over new positions, with an optional past.

    Call:
        x: [..., N, D] input embeddings.
        rotary: float32 [..., N, E/2, 2] cosine and sine of each position.
        block_mask: bool [..., N, N], row sees column (self included).
        past: for each place of the past, for each layer, its keys and values [..., K, S, E].
        past_masks: for each place of the past, bool [..., N, S]: which slots a row sees.
        passed_on: bool [..., N], tokens that ``front_layers`` and ``back_layers`` leave as they are, though others see
            them there; None for none.

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
    def __call__(self, x, rotary, block_mask, past=(), past_masks=(), passed_on=None):
        run, block, states, x = self._layers(), [], [], whole(x)
        config, count = self.config, self.config.num_layers
        for i in range(count):
            states.append(x)
            x, keys_values = run(i, x, rotary, block_mask, [place[i] for place in past], past_masks)
            if passed_on is not None and not config.front_layers <= i < count - config.back_layers:
                x = jnp.where(passed_on[..., None], states[-1], x)
            block.append(keys_values)
        if self.config.final_norm:
            x = RMSNorm(self.config.norm_eps, self.param_dtype, self.config.norm_offset, name="norm")(x)
        if self.taps:
            states.append(x)
            x = jnp.concatenate([*(states[tap] for tap in self.taps), x], axis=-1)
        return x, tuple(block)

    def _layers(self) -> Callable:
        """Returns the function that runs layer i: equal layers share one, which a program traces and lowers once."""

        def sizes(i):
            return self.config, self.config.input_norm or i > 0, self.dtype, self.param_dtype

        if self.is_initializing():
            return lambda i, *inputs: Layer(*sizes(i), name=f"layer_{i}")(*inputs)
        params = self.variables["params"]
        return lambda i, *inputs: _layer(*sizes(i))({"params": params[f"layer_{i}"]}, *inputs)


@lru_cache(256)
def _layer(*sizes: Any) -> Callable:
    return jax.jit(Layer(*sizes, parent=None, name="layer").apply)
