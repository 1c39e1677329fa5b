"""LlamaGen's GPT (arXiv 2406.06525), class- or caption-conditional, and its target record.

Axes: G guidance rows, B batch, P prefix, N nodes, T tokens of a picture, V codes, D width, C label slots,
F caption feature width, E head width.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.concrete import check_ids, check_padding
from lantern_jax.decoding.record import Record
from lantern_jax.families.llamagen.imagenet import IMAGENET_CLASSES
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import grid_rotary, padded_causal_mask
from lantern_jax.models.sizes import check_sizes, is_size
from lantern_jax.models.targets import StreamModel
from lantern_jax.models.transformer_config import TransformerConfig


@dataclass(frozen=True)
class LlamaGenConfig:
    """A LlamaGen GPT.

    Attributes:
        dim, num_layers, num_heads, vocab_size: D, layers, heads, V.
        grid: cells per side; T = grid * grid.
        hidden_dim: feed-forward width; None means LlamaGen's rule, 8/3 D rounded up to a multiple of 256.
        num_labels: rows of the label table under label conditioning (class-conditional: classes + 1, the last one
            unconditional); 0 under caption conditioning.
        label_slots: prefix length P under label conditioning (1 for a class, one per attribute for the demo).
        null_labels: label ids [C] of the unconditional row; None means the last label in every slot.
        caption_dim: F, width of the text encoder's features; 0 under label conditioning.
        caption_length: P under caption conditioning.
        qk_norm: as in ``TransformerConfig`` ("rms" for the demo; none in the published models).
        rotate_prefix: False is the published quirk, cosine = sine = 0 at prefix positions, so every attention
            logit there is 0; True leaves prefix positions unrotated (cosine 1), so attention can choose.
    """

    dim: int
    num_layers: int
    num_heads: int
    vocab_size: int = 16384
    grid: int = 16
    hidden_dim: int | None = None
    num_labels: int = 0
    label_slots: int = 1
    null_labels: tuple[int, ...] | None = None
    caption_dim: int = 0
    caption_length: int = 120
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    qk_norm: str = ""
    rotate_prefix: bool = False

    rotary = "grid"

    def __post_init__(self):
        check_sizes(self, may_be_zero=("num_labels", "caption_dim"))
        if bool(self.num_labels) == bool(self.caption_dim):
            raise LanternError(
                f"num_labels {self.num_labels} and caption_dim {self.caption_dim}: exactly one must be positive"
            )
        if self.null_labels is not None:
            labels = tuple(self.null_labels) if isinstance(self.null_labels, list | tuple) else ()
            if len(labels) != self.label_slots or not all(
                is_size(i, 0) and i < self.num_labels for i in labels
            ):
                raise LanternError(
                    f"null_labels {self.null_labels!r} is not valid: give {self.label_slots} label ids below "
                    f"{self.num_labels}, or none under caption conditioning"
                )
            object.__setattr__(self, "null_labels", labels)
        _ = self.transformer  # Checks head width and norms.

    @property
    def num_tokens(self) -> int:
        return self.grid * self.grid

    @property
    def num_codes(self) -> int:
        """V: every token is a code."""
        return self.vocab_size

    @property
    def forced_tokens(self) -> None:
        """All stream positions are free."""

    @property
    def unconditional_labels(self) -> tuple[int, ...]:
        """The label ids [C] of the unconditional row."""
        return self.null_labels or (self.num_labels - 1,) * self.label_slots

    @property
    def prefix_length(self) -> int:
        return self.label_slots if self.num_labels else self.caption_length

    @property
    def shared_with_drafter(self) -> dict[str, Any]:
        """Settings of a ``DrafterConfig`` that this target decides."""
        names = ("dim", "vocab_size", "grid", "prefix_length")
        return {name: getattr(self, name) for name in names} | {"rotary": self.rotary}

    @property
    def transformer(self) -> TransformerConfig:
        hidden = self.hidden_dim or -(-int(8 * self.dim / 3) // 256) * 256
        return TransformerConfig(
            self.dim, self.num_layers, self.num_heads, hidden, self.norm_eps, self.qk_norm
        )


# Published sizes (LlamaGen, table 1): layers, heads, D.
SIZES = {
    "B": (12, 12, 768),
    "L": (24, 16, 1024),
    "XL": (36, 20, 1280),
    "XXL": (48, 24, 1536),
    "XXXL": (48, 40, 2560),
    "1B": (22, 32, 2048),
    "3B": (24, 32, 3200),
    "7B": (32, 32, 4096),
}
T5_XL_DIM = 2048


def published_config(size: str, conditioning: str = "class", grid: int = 16) -> LlamaGenConfig:
    """Returns the config of a published size.

    Args:
        size: one of B, L, XL, XXL, XXXL, 1B, 3B, 7B.
        conditioning: "class" (ImageNet) or "caption" (Flan-T5-XL features).
        grid: cells per side: 16 (256 px), 24 (384 px) or 32 (512 px).

    Raises:
        LanternError: an unknown size or conditioning.

    Example:
        >>> from lantern_jax.families.llamagen.model import published_config
        >>> config = published_config("XL", "caption", grid=32)
        >>> config.num_layers, config.dim, config.num_tokens
        (36, 1280, 1024)
    """
    if size not in SIZES:
        raise errors.unknown("LlamaGen size", size, SIZES)
    if conditioning not in ("class", "caption"):
        raise LanternError(f"unknown conditioning {errors.quoted(conditioning)}: choose class or caption")
    layers, heads, dim = SIZES[size]
    labels, width = (IMAGENET_CLASSES + 1, 0) if conditioning == "class" else (0, T5_XL_DIM)
    return LlamaGenConfig(dim, layers, heads, grid=grid, num_labels=labels, caption_dim=width)


class CaptionConditioning(Record):
    """Caption features, left-padded.

    Attributes:
        features: [B, P, F] from the text encoder, zeros at padding.
        mask: bool [B, P], False at padding. The unconditional row has the same mask.
        negative, negative_mask: the same for captions of the unconditional row; None for the learned features.

    Example:
        >>> from lantern_jax.families.llamagen.model import CaptionConditioning
        >>> mask = np.arange(120)[None] >= 100  # a caption of 20 tokens
        >>> conditioning = CaptionConditioning(np.zeros((1, 120, 2048), np.float32), mask)
        >>> conditioning.mask.sum()
        np.int64(20)
    """

    features: Float[Array, "B P F"]
    mask: Bool[Array, "B P"]
    negative: Float[Array, "B P F"] | None = None
    negative_mask: Bool[Array, "B P"] | None = None


# Label ids of each slot, with those of the unconditional row where it is not the config's; or caption features.
Conditioning = Int[Array, "B C"] | Int[Array, "B 2 C"] | CaptionConditioning


class LlamaGen(StreamModel):
    """The GPT, a ``StreamModel``. Additional parameters: labels or caption."""

    def setup(self):
        super().setup()
        config, types = self.config, (self.dtype, self.param_dtype)
        if config.num_labels:
            self.labels = nn.Embed(config.num_labels, config.dim, *types, nn.initializers.normal(0.02))
        else:
            self.caption = CaptionProjection(config, *types)

    @staticmethod
    def check(config: LlamaGenConfig, conditioning: Conditioning) -> None:
        """Raises LanternError unless labels are the model's, one per slot, and captions are padded on the left."""
        if not config.num_labels:
            shape, row = conditioning.features.shape, (config.caption_length, config.caption_dim)
            if shape[1:] != row:
                raise LanternError(f"captions have shape {shape}: give features [n, {row[0]}, {row[1]}]")
            check_padding(conditioning.mask, shape[:-1])
            if conditioning.negative is not None:
                check_padding(conditioning.negative_mask, shape[:-1])
            return
        shape = conditioning.shape
        if shape[-1:] != (config.label_slots,) or shape[1:-1] not in ((), (2,)):
            raise LanternError(f"labels have shape {shape}: give ids [B, {config.label_slots}]")
        check_ids("labels", conditioning, config.num_labels)

    def embed_prefix(self, conditioning: Conditioning, guided: bool):
        """Returns embeddings [G, B, P, D] and validity mask [G, B, P]; the second row, if guided, is unconditional."""
        rows = 2 if guided else 1
        if not self.config.num_labels:
            if guided and conditioning.negative is not None:
                rows = (
                    (conditioning.features, conditioning.negative),
                    (conditioning.mask, conditioning.negative_mask),
                )
                features, mask = map(jnp.stack, rows)
                return self.caption(features), mask
            mask = jnp.broadcast_to(conditioning.mask[None], (rows, *conditioning.mask.shape))
            return self.caption(conditioning.features[None], guided), mask
        labels = jnp.asarray(conditioning, jnp.int32)
        labels = labels[None] if labels.ndim == 2 else labels.swapaxes(0, 1)[:rows]
        if len(labels) < rows:
            null = jnp.asarray(self.config.unconditional_labels, jnp.int32)
            labels = jnp.concatenate([labels, jnp.broadcast_to(null[None, None], labels.shape)])
        return self.labels(labels), jnp.ones(labels.shape, bool)

    def prefix_rotary(self) -> Float[np.ndarray, "P E/2 2"]:
        """Returns the rotation factors of the prefix: zero in the published models."""
        rotary = np.zeros((self.config.prefix_length, self.config.transformer.head_dim // 2, 2), np.float32)
        rotary[..., 0] = float(self.config.rotate_prefix)
        return rotary

    def prefill(self, conditioning: Conditioning, guided: bool):
        """Runs the prefix, as ``transformer_target`` requires; it holds no tokens, so they are all 0."""
        x, valid = self.embed_prefix(conditioning, guided)
        rotary = jnp.asarray(self.prefix_rotary())[None, None]
        features, block = self.transformer(x, rotary, padded_causal_mask(valid))
        positions = jnp.broadcast_to(jnp.arange(valid.shape[-1], dtype=jnp.int32), valid.shape)
        return features, block, jnp.zeros(valid.shape, jnp.int32), valid, positions

    def __call__(self, conditioning: Conditioning, tokens: Int[Array, "B T"]):
        """Runs teacher-forced; returns features [B, T, D] and float32 logits [B, T, V] that predict each token."""
        config = self.config
        prefix, valid = (rows[0] for rows in self.embed_prefix(conditioning, guided=False))
        x = jnp.concatenate([prefix, self.tokens(tokens[:, :-1])], axis=1)
        valid = jnp.pad(valid, ((0, 0), (0, tokens.shape[1] - 1)), constant_values=True)
        cells = grid_rotary(config.grid, config.transformer.head_dim, config.rope_base)
        rotary = np.concatenate([self.prefix_rotary(), cells[: tokens.shape[1] - 1]])
        features, _ = self.transformer(x, jnp.asarray(rotary)[None], padded_causal_mask(valid))
        features = features[:, config.prefix_length - 1 :]
        return features, self.logits(features)


class CaptionProjection(nn.Module):
    """LlamaGen's ``cap_proj``: two matrices with a tanh-GELU between; the unconditional row's features are learned."""

    config: LlamaGenConfig
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(self, features: Float[Array, "R B P F"], guided: bool = False) -> Float[Array, "G B P D"]:
        config = self.config
        shape = (config.caption_length, config.caption_dim)
        init = nn.initializers.normal(shape[1] ** -0.5)
        unconditional = self.param("unconditional", init, shape, self.param_dtype)
        x = features.astype(self.dtype)
        if guided:
            x = jnp.concatenate([x, jnp.broadcast_to(unconditional.astype(self.dtype)[None, None], x.shape)])

        def dense(name):
            return nn.Dense(
                config.dim, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype, name=name
            )

        return dense("fc2")(nn.gelu(dense("fc1")(x), approximate=True))
