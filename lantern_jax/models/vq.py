"""The VQ tokenizer of LlamaGen and of Chameleon: pictures to codes and back.

A convolutional encoder, a codebook of small (by default l2-normalized) codes and a convolutional decoder, after
taming-transformers' VQGAN (arXiv 2012.09841) and LlamaGen (arXiv 2406.06525). Pictures are channels-last.

Axes: B batch, H W picture height and width, h w height and width of the code grid (row-major where flattened),
T = h * w tokens of a picture, V codebook size, C channels of a code.
"""

import dataclasses
import math
from functools import cache
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from einops import rearrange
from jaxtyping import Array, Float, Int, UInt8

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import check_sizes, is_size
from lantern_jax.models.vq_clip import FrameStack

# A config's largest number of levels, and the largest width of a level relative to ``ch``.
MOST_LEVELS, MOST_FACTOR = 10, 256


@dataclasses.dataclass(frozen=True)
class VQConfig:
    """Sizes of a VQ tokenizer; the defaults are LlamaGen's VQ-16.

    Attributes:
        decoder_ch: None means ``ch``.
        encoder_blocks, decoder_blocks: residual blocks per level.
        level_attention: attention after each block of the lowest-resolution level.
        patch: more than 1 is our extension: space-to-depth before the encoder, its inverse after the decoder, so that
            large pictures stay cheap.
        smooth: channels of three convolutions over the whole picture at the end, which hide the borders of patches; 0
            for none. Our extension too.
        code_norm: whether the decoder's norms are scaled and shifted by the nearest code (MoVQ, arXiv 2209.09002).
        by_product: whether the code of a cell is the one with the greatest product, not the nearest (IBQ, 2412.02692).
        clip_blocks: residual blocks over time in a video tokenizer (Emu3), 0 for none: a picture is a still clip.
    """

    ch: int = 128
    decoder_ch: int | None = None
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    z_channels: int = 256
    codebook_size: int = 16384
    codebook_dim: int = 8
    l2_norm: bool = True
    encoder_blocks: int = 2
    decoder_blocks: int = 3
    groups: int = 32
    level_attention: bool = True
    mid_attention: bool = True
    patch: int = 1
    smooth: int = 0
    code_norm: bool = False
    clip_blocks: int = 0
    by_product: bool = False

    def __post_init__(self):
        check_sizes(self, may_be_zero=("clip_blocks", "smooth"))
        factors = self.ch_mult
        levels = isinstance(factors, list | tuple) and 0 < len(factors) <= MOST_LEVELS
        if not levels or not all(is_size(factor) and factor <= MOST_FACTOR for factor in factors):
            wanted = f"a whole number from 1 to {MOST_FACTOR} for each of at most {MOST_LEVELS} levels"
            raise errors.invalid("ch_mult", factors, wanted)
        object.__setattr__(self, "ch_mult", tuple(factors))
        for width in (self.ch, self.decoder_width):
            if any(width * m % self.groups for m in self.ch_mult):
                raise LanternError(
                    f"channel width {width} times {self.ch_mult} must divide into {self.groups} groups"
                )

    @property
    def decoder_width(self) -> int:
        """Width of the decoder's first level."""
        return self.ch if self.decoder_ch is None else self.decoder_ch

    @property
    def downsampling(self) -> int:
        """Pixels per code along a side (f in the literature)."""
        return self.patch * 2 ** (len(self.ch_mult) - 1)


def conv3(features: int, name: str) -> nn.Conv:
    return nn.Conv(features, (3, 3), padding=((1, 1), (1, 1)), name=name)


def conv1(features: int, name: str) -> nn.Conv:
    return nn.Conv(features, (1, 1), name=name)


def group_norm(groups: int, name: str) -> nn.GroupNorm:
    return nn.GroupNorm(groups, epsilon=1e-6, use_fast_variance=False, name=name)


class CodeNorm(nn.Module):
    """GroupNorm, scaled and shifted at each place by convolutions of the code nearest to it."""

    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"], codes: Float[Array, "B i j C"]) -> Float[Array, "B h w c"]:
        scale, shift = (conv1(x.shape[-1], name)(codes) for name in ("conv_y", "conv_b"))
        for axis in (1, 2):
            times = x.shape[axis] // codes.shape[axis]
            scale, shift = (jnp.repeat(part, times, axis=axis) for part in (scale, shift))
        return group_norm(self.groups, "norm_layer")(x) * scale + shift


def normed(x, codes, groups: int, name: str):
    """Applies a GroupNorm to x, or a ``CodeNorm`` if ``codes`` are given."""
    return group_norm(groups, name)(x) if codes is None else CodeNorm(groups, name=name)(x, codes)


class ResBlock(nn.Module):
    """Norm, SiLU, convolution, twice, plus the input (through a 1x1 convolution if the width changes)."""

    features: int
    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"], codes=None) -> Float[Array, "B h w d"]:
        y = conv3(self.features, "conv1")(nn.silu(normed(x, codes, self.groups, "norm1")))
        y = conv3(self.features, "conv2")(nn.silu(normed(y, codes, self.groups, "norm2")))
        if x.shape[-1] != self.features:
            x = conv1(self.features, "nin_shortcut")(x)
        return x + y


class AttnBlock(nn.Module):
    """Single-head self-attention over all cells of a picture, plus the input."""

    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"], codes=None) -> Float[Array, "B h w c"]:
        _, height, width, channels = x.shape
        y = normed(x, codes, self.groups, "norm")
        q, k, v = (rearrange(conv1(channels, n)(y), "B h w c -> B (h w) c") for n in ("q", "k", "v"))
        weights = jax.nn.softmax(jnp.einsum("btc,bsc->bts", q, k) * channels**-0.5, axis=-1)
        y = rearrange(jnp.einsum("bts,bsc->btc", weights, v), "B (h w) c -> B h w c", h=height, w=width)
        return x + conv1(channels, "proj_out")(y)


class Middle(nn.Module):
    """Residual block, attention, residual block at the lowest resolution."""

    features: int
    groups: int
    attention: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"], codes=None) -> Float[Array, "B h w c"]:
        x = ResBlock(self.features, self.groups, name="0")(x, codes)
        if self.attention:
            x = AttnBlock(self.groups, name="1")(x, codes)
        return ResBlock(self.features, self.groups, name="2")(x, codes)


class Level(nn.Module):
    """The residual blocks of one resolution, with attention after each if ``attention``, then a change of resolution.

    ``resample`` is "down" (pad bottom and right by one, stride-2 convolution), "up" (nearest neighbour, convolution)
    or "".
    """

    features: int
    blocks: int
    groups: int
    attention: bool
    resample: str

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"], codes=None) -> Float[Array, "B i j d"]:
        for b in range(self.blocks):
            x = ResBlock(self.features, self.groups, name=f"res_{b}")(x, codes)
            if self.attention:
                x = AttnBlock(self.groups, name=f"attn_{b}")(x, codes)
        if self.resample == "down":
            padding = ((0, 1), (0, 1))
            x = nn.Conv(self.features, (3, 3), strides=(2, 2), padding=padding, name="downsample")(x)
        elif self.resample == "up":
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = conv3(self.features, "upsample")(x)
        return x


class Encoder(nn.Module):
    """Pictures (folded by ``patch``) to z_channels features on the code grid."""

    config: VQConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B H W c"]) -> Float[Array, "B h w z"]:
        c = self.config
        x = conv3(c.ch, "conv_in")(x)
        for i, mult in enumerate(c.ch_mult):
            last = i == len(c.ch_mult) - 1
            attention, resample = c.level_attention and last, "" if last else "down"
            x = Level(c.ch * mult, c.encoder_blocks, c.groups, attention, resample, name=f"level_{i}")(x)
        x = Middle(x.shape[-1], c.groups, c.mid_attention, name="mid")(x)
        x = nn.silu(group_norm(c.groups, "norm_out")(x))
        return conv3(c.z_channels, "conv_out")(x)


class Decoder(nn.Module):
    """z_channels features on the code grid to pictures (folded by ``patch``); level 0 is the coarsest.

    ``codes`` [B, h, w, C] are for norms that take them.
    """

    config: VQConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B h w z"], codes=None) -> Float[Array, "B H W c"]:
        c = self.config
        x = conv3(c.decoder_width * c.ch_mult[-1], "conv_in")(x)
        x = Middle(x.shape[-1], c.groups, c.mid_attention, name="mid")(x, codes)
        for i, mult in enumerate(reversed(c.ch_mult)):
            attention, resample = c.level_attention and i == 0, "" if i == len(c.ch_mult) - 1 else "up"
            features = c.decoder_width * mult
            x = Level(features, c.decoder_blocks, c.groups, attention, resample, name=f"level_{i}")(x, codes)
        x = nn.silu(normed(x, codes, c.groups, "norm_out"))
        return conv3(3 * c.patch**2, "conv_out")(x)


class Smoother(nn.Module):
    """Adds the output of three convolutions to pictures, zero at initialization."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
        y = nn.silu(conv3(self.features, "conv_in")(x))
        y = nn.silu(conv3(self.features, "conv_mid")(y))
        nothing = nn.initializers.zeros
        return x + nn.Conv(3, (3, 3), padding=((1, 1), (1, 1)), kernel_init=nothing, name="conv_out")(y)


def space_to_depth(x: Float[Array, "B H W c"], patch: int) -> Float[Array, "B h w d"]:
    """Folds each patch x patch block into channels, ordered row, column, channel; sides are multiples of ``patch``."""
    return rearrange(x, "B (h p) (w q) c -> B h w (p q c)", p=patch, q=patch)


def depth_to_space(x: Float[Array, "B h w d"], patch: int) -> Float[Array, "B H W c"]:
    """Unfolds channels into blocks: the inverse of ``space_to_depth``."""
    return rearrange(x, "B h w (p q c) -> B (h p) (w q) c", p=patch, q=patch)


def l2_normalize(x: Float[Array, "... C"]) -> Float[Array, "... C"]:
    """Divides vectors by their length, or by 1e-12 if shorter. Differentiable at zero."""
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def nearest_code(
    z: Float[Array, "... C"], codebook: Float[Array, "V C"], *, l2_norm: bool = True
) -> Int[Array, "..."]:
    """Finds the nearest code (L2) of each vector, int32, lowest id on ties; both sides normalized if ``l2_norm``."""
    if l2_norm:
        z, codebook = l2_normalize(z), l2_normalize(codebook)
    product = jnp.einsum("...c,vc->...v", z, codebook, precision="highest")
    square = jnp.sum(codebook**2, axis=-1)
    distance = jnp.broadcast_to(square, product.shape) - 2.0 * product
    return jnp.argmin(distance, axis=-1).astype(jnp.int32)


class VQModel(nn.Module):
    """The tokenizer. Parameters: encoder, decoder, quant_conv, post_quant_conv, codebook (float32 [V, C], as published:
    before normalization), and smoother where there is one.

    Attributes:
        grid: (h, w) of the codes that ``decode`` takes; None for a square.

    Example:
        >>> from lantern_jax.models.vq import VQConfig, VQModel
        >>> config = VQConfig(ch=32, ch_mult=(1, 2), encoder_blocks=1, decoder_blocks=1)
        >>> model, codes = VQModel(config), jnp.zeros((1, 64), jnp.int32)
        >>> params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 16, 16, 3)))
        >>> jax.eval_shape(lambda params: model.apply(params, codes, method="decode"), params).shape
        (1, 16, 16, 3)
    """

    config: VQConfig
    grid: tuple[int, int] | None = None

    def setup(self):
        c = self.config
        self.encoder = Encoder(c)
        self.decoder = Decoder(c)
        self.quant_conv = nn.Conv(c.codebook_dim, (1, 1))
        self.post_quant_conv = nn.Conv(c.z_channels, (1, 1))
        if c.smooth:
            self.smoother = Smoother(c.smooth)
        if c.clip_blocks:
            self.encoder_clip = FrameStack(c.clip_blocks, downward=True)
            self.decoder_clip = FrameStack(c.clip_blocks, downward=False)
        self.codebook = self.param(
            "codebook", nn.initializers.normal(1.0), (c.codebook_size, c.codebook_dim), jnp.float32
        )

    def encode(self, pictures: Float[Array, "B H W 3"]) -> Float[Array, "B h w C"]:
        """Encodes pictures in [-1, 1] to code vectors before quantization.

        Raises LanternError unless sides are multiples of ``config.downsampling``.
        """
        f = self.config.downsampling
        if pictures.ndim != 4 or pictures.shape[3] != 3 or pictures.shape[1] % f or pictures.shape[2] % f:
            raise LanternError(
                f"pictures have shape {pictures.shape}, expected [B, H, W, 3] with sides multiples of {f}"
            )
        x = self.encoder(space_to_depth(pictures, self.config.patch))
        return self.quant_conv(self.encoder_clip(x) if self.config.clip_blocks else x)

    def quantize(self, z: Float[Array, "B h w C"]) -> Int[Array, "B T"]:
        """Returns the code of each cell, int32, row-major: the nearest, or the one with the greatest product."""
        if self.config.by_product:
            products = jnp.einsum("bhwc,vc->bhwv", z, self.codebook)
            codes = jnp.argmax(products, axis=-1).astype(jnp.int32)
        else:
            codes = nearest_code(z, self.codebook, l2_norm=self.config.l2_norm)
        return rearrange(codes, "B h w -> B (h w)")

    def codes(self, pictures: UInt8[Array, "B H W 3"]) -> Int[Array, "B T"]:
        """Encodes and quantizes pictures as stored in files; raises as ``encode`` does."""
        return self.quantize(self.encode(pictures.astype(jnp.float32) / 127.5 - 1.0))

    def code_vectors(self) -> Float[Array, "V C"]:
        """Returns the codebook as the decoder sees it: l2-normalized if the config says so."""
        return l2_normalize(self.codebook) if self.config.l2_norm else self.codebook

    def decode_vectors(self, vectors: Float[Array, "B h w C"]) -> Float[Array, "B H W 3"]:
        """Decodes code vectors, as the decoder sees them, to pictures in about [-1, 1] (not clipped)."""
        c, x = self.config, self.post_quant_conv(vectors)
        if c.clip_blocks:
            x, vectors = self.decoder_clip(x), self.decoder_clip(vectors)
        pictures = depth_to_space(self.decoder(x, vectors if c.code_norm else None), c.patch)
        return self.smoother(pictures) if c.smooth else pictures

    def decode(self, codes: Int[Array, "B T"]) -> Float[Array, "B H W 3"]:
        """Decodes codes, row-major, in [0, V), to pictures in about [-1, 1] (not clipped); raises LanternError unless T
        is h * w."""
        side = math.isqrt(codes.shape[1])
        height, width = self.grid or (side, side)
        if height * width != codes.shape[1]:
            raise LanternError(
                f"{codes.shape[1]} codes do not fill a {height}x{width} grid; give grid=(h, w)"
            )
        vectors = self.code_vectors()[codes]
        return self.decode_vectors(rearrange(vectors, "B (h w) c -> B h w c", h=height, w=width))

    def __call__(self, pictures: Float[Array, "B H W 3"]) -> Float[Array, "B H W 3"]:
        """Reconstructs pictures: encodes, quantizes, decodes."""
        codes = nearest_code(self.encode(pictures), self.codebook, l2_norm=self.config.l2_norm)
        return self.decode_vectors(self.code_vectors()[codes])


@cache
def vq_shapes(config: VQConfig) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``VQModel(config).init`` makes, traced once: it takes a second."""
    side = config.downsampling
    pictures = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    return jax.eval_shape(VQModel(config).init, jax.random.key(0), pictures)
