"""CLIP (arXiv 2103.00020): pictures and texts to embeddings whose cosine says how well they agree.

One network for every published size with a vision transformer: ViT-B, L, H and larger.

Axes: n pictures or texts, h w height and width, P positions, D width of a tower, F embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import check_sizes


def quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x times the logistic function of 1.702 x: OpenAI's stand-in for GELU."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable] = {"quick_gelu": quick_gelu, "gelu": partial(nn.gelu, approximate=False)}
# Published sizes by width and layers of the vision tower.
_SIZES = {(768, 12): "B", (1024, 24): "L", (1280, 32): "H", (1408, 40): "g", (1664, 48): "bigG"}
_USUAL_SIDE = 224


@dataclass(frozen=True)
class Tower:
    """A transformer.

    Attributes:
        width: D.
        layers, heads: their numbers.
        hidden: width of the feed-forward layers.
    """

    width: int
    layers: int
    heads: int
    hidden: int

    def __post_init__(self):
        check_sizes(self)
        if self.width % self.heads:
            raise LanternError(f"width {self.width} does not divide into {self.heads} heads")


@dataclass(frozen=True)
class ClipConfig:
    """A CLIP with a vision transformer.

    Attributes:
        vision, text: its towers.
        activation: of the feed-forward layers, "quick_gelu" or "gelu". Shapes do not tell which, and the wrong one
            gives wrong scores without any error.
        patch, side: side in pixels of a patch and of a picture.
        embedding: F, the width in which both towers end.
        vocab_size, context: how many ids the tokenizer and a text have.
    """

    vision: Tower
    text: Tower
    activation: str
    patch: int
    side: int
    embedding: int
    vocab_size: int = 49408
    context: int = 77

    def __post_init__(self):
        check_sizes(self)
        if self.activation not in ACTIVATIONS:
            raise errors.unknown("activation", self.activation, ACTIVATIONS)
        if self.side % self.patch:
            raise LanternError(f"a side of {self.side} pixels does not divide into patches of {self.patch}")

    @property
    def name(self) -> str:
        """A name such as "CLIP ViT-B/32 (quick_gelu)"."""
        size = _SIZES.get((self.vision.width, self.vision.layers), str(self.vision.width))
        side = "" if self.side == _USUAL_SIDE else f"@{self.side}"
        return f"CLIP ViT-{size}/{self.patch}{side} ({self.activation})"


def layer_norm(name: str) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, name=name)


class ClipLayer(nn.Module):
    """Attention, then a feed-forward layer, both after a norm and added to their input.

    With ``causal`` a position sees only positions up to itself.
    """

    tower: Tower
    activation: str
    causal: bool

    @nn.compact
    def __call__(self, x: Float[Array, "n P D"]) -> Float[Array, "n P D"]:
        tower, (count, positions, _) = self.tower, x.shape
        hidden = nn.Dense(3 * tower.width, name="qkv")(layer_norm("attention_norm")(x))
        shape = count, positions, 3, tower.heads, tower.width // tower.heads
        queries, keys, values = jnp.moveaxis(hidden.reshape(shape), 2, 0)
        scores = jnp.einsum("nphe,nshe->nhps", queries, keys) * (shape[-1] ** -0.5)
        if self.causal:
            scores = jnp.where(np.tri(positions, dtype=bool)[None, None], scores, jnp.finfo(scores.dtype).min)
        attended = jnp.einsum("nhps,nshe->nphe", jax.nn.softmax(scores, axis=-1), values)
        x = x + nn.Dense(tower.width, name="out")(attended.reshape(x.shape))

        hidden = nn.Dense(tower.hidden, name="up")(layer_norm("feed_forward_norm")(x))
        return x + nn.Dense(tower.width, name="down")(ACTIVATIONS[self.activation](hidden))


class PictureTower(nn.Module):
    """A class token and patches through a transformer, read at the class token."""

    config: ClipConfig

    @nn.compact
    def __call__(self, pictures: Float[Array, "n h w 3"]) -> Float[Array, "n D"]:
        tower, patch = self.config.vision, (self.config.patch, self.config.patch)
        init = nn.initializers.normal(tower.width**-0.5)
        x = nn.Conv(tower.width, patch, patch, padding="VALID", use_bias=False, name="patches")(pictures)
        x = x.reshape(len(x), -1, tower.width)
        first = self.param("class_embedding", init, (tower.width,))
        x = jnp.concatenate([jnp.broadcast_to(first, (len(x), 1, tower.width)), x], axis=1)
        x = layer_norm("norm_before")(x + self.param("positions", init, x.shape[1:])[None])
        for i in range(tower.layers):
            x = ClipLayer(tower, self.config.activation, causal=False, name=f"layer_{i}")(x)
        return layer_norm("norm_after")(x[:, 0])


class TextTower(nn.Module):
    """Ids through a causal transformer, read at the first end token, which is the greatest id."""

    config: ClipConfig

    @nn.compact
    def __call__(self, ids: Int[Array, "n P"]) -> Float[Array, "n F"]:
        config, tower = self.config, self.config.text
        init = nn.initializers.normal(0.02)
        x = nn.Embed(config.vocab_size, tower.width, embedding_init=init, name="tokens")(ids)
        x = x + self.param("positions", init, (config.context, tower.width))[None]
        for i in range(tower.layers):
            x = ClipLayer(tower, config.activation, causal=True, name=f"layer_{i}")(x)
        end = jnp.argmax(ids, axis=-1)[:, None, None]
        x = layer_norm("norm_after")(jnp.take_along_axis(x, end, axis=1)[:, 0])
        return nn.Dense(config.embedding, use_bias=False, name="projection")(x)


class Clip(nn.Module):
    """Both towers: apply with ``method="embed_pictures"`` or ``"embed_texts"``; a plain call does both."""

    config: ClipConfig

    def setup(self):
        self.vision = PictureTower(self.config)
        self.vision_projection = nn.Dense(self.config.embedding, use_bias=False)
        self.text = TextTower(self.config)

    def embed_pictures(self, pictures: Float[Array, "n h w 3"]) -> Float[Array, "n F"]:
        """Embeds normalized pictures [n, side, side, 3] at the class token; the embeddings may have any length."""
        return self.vision_projection(self.vision(pictures))

    def embed_texts(self, ids: Int[Array, "n P"]) -> Float[Array, "n F"]:
        """Embeds int32 ids [n, context]; the embeddings may have any length."""
        return self.text(ids)

    def __call__(
        self, pictures: Float[Array, "n h w 3"], ids: Int[Array, "n P"]
    ) -> tuple[Float[Array, "n F"], Float[Array, "n F"]]:
        return self.embed_pictures(pictures), self.embed_texts(ids)


@cache
def clip_shapes(config: ClipConfig) -> PyTree:
    """Returns the shapes of what ``Clip(config).init`` makes."""
    pictures = jax.ShapeDtypeStruct((1, config.side, config.side, 3), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, config.context), jnp.int32)
    return jax.eval_shape(Clip(config).init, jax.random.key(0), pictures, ids)
