"""ImageReward (arXiv 2304.05977): a BLIP with a head that learned people's choices among pictures for a prompt.

A vision transformer reads the picture; BERT reads the prompt and, in every layer, the picture's positions; a chain of
linear layers turns the first position into one number. Published as ``ImageReward.pt`` of THUDM/ImageReward.

Axes: n pictures with their prompts, h w height and width, P positions, D width, S positions of the picture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.apps.metrics.clip import PictureTower, Tower, attend, layer_norm
from lantern_jax.apps.metrics.clip_files import side_of
from lantern_jax.apps.metrics.clip_tokenizer import mark_ids, warn_of_cut
from lantern_jax.apps.metrics.features import Score, check_pairs, in_batches, network
from lantern_jax.apps.metrics.preprocessing import clip_input
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.layer_names import count_layers, deciding_shapes
from lantern_jax.tensors.matching import Entry, module_table, named_by, read_tensors
from lantern_jax.text.packed import padded_rows
from lantern_jax.text.tokenizers import load_tokenizer

WHAT = "checkpoint of ImageReward"
# Tokens of a prompt, with [CLS] and [SEP].
CONTEXT = 35
# Mean and standard deviation of the scores in its training, by which its scores are normalised.
_MEAN, _DEVIATION = 0.16717362830052426, 1.0333394966054072
_HEAD_WIDTH = 64
_VISION_EPSILON, _TEXT_EPSILON = 1e-6, 1e-12
# The head's linear layers: published number -> width.
_HEAD = {0: 1024, 2: 128, 4: 64, 6: 16, 7: 1}
_VISION, _TEXT = "blip.visual_encoder.", "blip.text_encoder."
_NAMES = {
    "vision.class_embedding": f"{_VISION}cls_token",
    "vision.positions": f"{_VISION}pos_embed",
    "vision.patches": f"{_VISION}patch_embed.proj",
    "vision.layer_{i}.attention_norm": f"{_VISION}blocks.{{i}}.norm1",
    "vision.layer_{i}.qkv": f"{_VISION}blocks.{{i}}.attn.qkv",
    "vision.layer_{i}.out": f"{_VISION}blocks.{{i}}.attn.proj",
    "vision.layer_{i}.feed_forward_norm": f"{_VISION}blocks.{{i}}.norm2",
    "vision.layer_{i}.up": f"{_VISION}blocks.{{i}}.mlp.fc1",
    "vision.layer_{i}.down": f"{_VISION}blocks.{{i}}.mlp.fc2",
    "vision.norm_after": f"{_VISION}norm",
    "tokens": f"{_TEXT}embeddings.word_embeddings",
    "positions": f"{_TEXT}embeddings.position_embeddings.weight",
    "text_norm": f"{_TEXT}embeddings.LayerNorm",
    **{
        f"layer_{{i}}.{ours}.{part}": f"{_TEXT}encoder.layer.{{i}}.{theirs}.{name}"
        for ours, theirs in (("attention", "attention"), ("cross", "crossattention"))
        for part, name in (
            *((part, f"self.{part}") for part in ("query", "key", "value")),
            ("out", "output.dense"),
            ("norm", "output.LayerNorm"),
        )
    },
    "layer_{i}.up": f"{_TEXT}encoder.layer.{{i}}.intermediate.dense",
    "layer_{i}.down": f"{_TEXT}encoder.layer.{{i}}.output.dense",
    "layer_{i}.norm": f"{_TEXT}encoder.layer.{{i}}.output.LayerNorm",
    "head_{i}": "mlp.layers.{i}",
}
# Parts of BLIP's training that the score does not need.
_UNREAD = ("blip.vision_proj.", "blip.text_proj.", f"{_TEXT}embeddings.position_ids")


@dataclass(frozen=True)
class RewardConfig:
    """Sizes of an ImageReward.

    Attributes:
        vision, text: its towers.
        patch, side: side in pixels of a patch and of a picture.
        vocab_size, positions: rows of the text's tables of tokens and of positions.
    """

    vision: Tower
    text: Tower
    patch: int
    side: int
    vocab_size: int
    positions: int


class BertAttention(nn.Module):
    """Attention to a source's positions, added to the input, then a norm."""

    heads: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "n P D"], source: Float[Array, "n S _"], mask: Bool[Array, "n S"]
    ) -> Float[Array, "n P D"]:
        width = x.shape[-1]
        parts = (
            nn.Dense(width, name=name)(values).reshape(*values.shape[:2], self.heads, -1)
            for name, values in (("query", x), ("key", source), ("value", source))
        )
        attended = attend(*parts, mask[:, None])
        return layer_norm("norm", _TEXT_EPSILON)(x + nn.Dense(width, name="out")(attended))


class BertLayer(nn.Module):
    """Attention to the text, to the picture, and a feed-forward layer."""

    tower: Tower

    @nn.compact
    def __call__(
        self, x: Float[Array, "n P D"], seen: Float[Array, "n S _"], mask: Bool[Array, "n P"]
    ) -> Float[Array, "n P D"]:
        x = BertAttention(self.tower.heads, name="attention")(x, x, mask)
        x = BertAttention(self.tower.heads, name="cross")(x, seen, jnp.ones(seen.shape[:2], bool))
        hidden = nn.gelu(nn.Dense(self.tower.hidden, name="up")(x), approximate=False)
        return layer_norm("norm", _TEXT_EPSILON)(x + nn.Dense(self.tower.width, name="down")(hidden))


class ImageReward(nn.Module):
    """The network from normalized pictures and ids to scores; ``mask`` is False where a prompt is padded."""

    config: RewardConfig

    @nn.compact
    def __call__(
        self, pictures: Float[Array, "n h w 3"], ids: Int[Array, "n P"], mask: Bool[Array, "n P"]
    ) -> Float[Array, " n"]:
        config, vision, text = self.config, self.config.vision, self.config.text
        seen = PictureTower(vision, config.patch, "gelu", _VISION_EPSILON, norm_before=False, name="vision")(
            pictures
        )
        init = nn.initializers.normal(0.02)
        x = nn.Embed(config.vocab_size, text.width, embedding_init=init, name="tokens")(ids)
        positions = self.param("positions", init, (config.positions, text.width))
        x = layer_norm("text_norm", _TEXT_EPSILON)(x + positions[None, : ids.shape[1]])
        for i in range(text.layers):
            x = BertLayer(text, name=f"layer_{i}")(x, seen, mask)
        x = x[:, 0]
        # No activations between them, as published.
        for number, width in _HEAD.items():
            x = nn.Dense(width, name=f"head_{number}")(x)
        return (x[:, 0] - _MEAN) / _DEVIATION


def reward_config_from_shapes(tensors: Mapping[str, Any]) -> RewardConfig:
    """Reads the config off names and shapes (anything with ``.shape``); heads are 64 wide.

    Raises:
        LanternError: tensors that decide a size are missing or impossible.
    """
    names = {
        f"{_VISION}pos_embed": 3, f"{_VISION}patch_embed.proj.weight": 4, f"{_VISION}blocks.0.mlp.fc1.weight": 2,
        f"{_TEXT}embeddings.word_embeddings.weight": 2, f"{_TEXT}embeddings.position_embeddings.weight": 2,
        f"{_TEXT}encoder.layer.0.intermediate.dense.weight": 2,
    }  # fmt: skip
    shapes = deciding_shapes(tensors, names, WHAT)
    seen, patches, picture_hidden, tokens, positions, text_hidden = (shapes[name] for name in names)
    if seen[2] % _HEAD_WIDTH or tokens[1] % _HEAD_WIDTH:
        raise LanternError(f"these tensors are not a {WHAT}: a width has no heads of {_HEAD_WIDTH}")

    def tower(width: int, hidden: int, layers: str) -> Tower:
        return Tower(width, count_layers(tensors, layers), width // _HEAD_WIDTH, hidden)

    return RewardConfig(
        vision=tower(seen[2], picture_hidden[0], f"{_VISION}blocks.{{i}}.norm1.weight"),
        text=tower(tokens[1], text_hidden[0], f"{_TEXT}encoder.layer.{{i}}.output.LayerNorm.weight"),
        patch=patches[2],
        side=patches[2] * side_of(seen[1], WHAT),
        vocab_size=tokens[0],
        positions=positions[0],
    )


def reward_table(config: RewardConfig) -> dict[str, Entry]:
    """Returns {published name: Entry} of an ImageReward."""
    pictures = jax.ShapeDtypeStruct((1, config.side, config.side, 3), jnp.float32)
    ids, mask = (jax.ShapeDtypeStruct((1, 1), kind) for kind in (jnp.int32, jnp.bool_))
    shapes = jax.eval_shape(ImageReward(config).init, jax.random.key(0), pictures, ids, mask)
    table = module_table(shapes["params"], named_by(_NAMES))
    # Published with an axis for pictures.
    for part in ("class_embedding", "positions"):
        entry = table[_NAMES[f"vision.{part}"]]
        shape = (*(1,) * (3 - len(entry.shape)), *entry.shape)
        table[_NAMES[f"vision.{part}"]] = Entry(entry.path, shape, partial(np.reshape, shape=entry.shape))
    return table


def convert_image_reward(tensors: Mapping[str, Any]) -> tuple[RewardConfig, dict[str, Any]]:
    """Converts the published tensors to the config and ``{"params": ...}``.

    Raises:
        LanternError: one line that lists every missing, unexpected and misshapen tensor.
    """
    config = reward_config_from_shapes(tensors)
    ignored = [name for name in tensors if name.startswith(_UNREAD)]
    return config, {"params": read_tensors(tensors, reward_table(config), what=WHAT, ignored=ignored)}


def image_reward_scores(
    weights: str | Path, tokenizer: str | Path | None = None, *, batch: int = 16
) -> Score:
    """Returns ImageReward's score: 0 for an average picture of its training, 1 for one standard deviation above.

    Args:
        weights: ``ImageReward.pt``, or the same tensors in another file.
        tokenizer: the ``tokenizer.json`` of bert-base-uncased; None for the one in the weights' folder.
        batch: pictures read together.

    Raises:
        LanternError: a file cannot be read or is not ImageReward's.
        ImportError: a package that reads them is not installed.
    """
    weights = Path(weights)
    path = Path(tokenizer) if tokenizer is not None else weights.parent / "tokenizer.json"
    words = load_tokenizer(path)
    start, end = mark_ids(words, ("[CLS]", "[SEP]"), path, "BERT", "give that of bert-base-uncased")
    tensors = open_tensors(weights)
    try:
        config, params = convert_image_reward(tensors)
    except ValueError as error:
        raise LanternError(f"{weights}: {error}") from error
    read = network(ImageReward(config).apply, params)

    def of(pictures: Sequence[UInt8[np.ndarray, "H W 3"]], prompts: Sequence[str]) -> Float[np.ndarray, " n"]:
        check_pairs(pictures, prompts)
        # Between [CLS] and [SEP].
        found = [words.encode(prompt) for prompt in prompts]
        warn_of_cut("ImageReward", found, CONTEXT - 2)
        ids, mask = padded_rows([[start, *row[: CONTEXT - 2], end] for row in found], CONTEXT)
        if ids.max(initial=0) >= config.vocab_size:
            raise LanternError(f"{path} has ids beyond the {config.vocab_size} of {weights}: give its own")
        seen = (clip_input(picture, config.side) for picture in pictures)
        return np.concatenate([np.zeros(0), *in_batches(read, batch, zip(seen, ids, mask, strict=True))])

    return Score("ImageReward", of)
