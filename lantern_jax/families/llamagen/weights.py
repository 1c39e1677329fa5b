"""Converts LlamaGen's published GPTs to our parameter trees.

Two layouts: the original one (``layers.{i}.attention.wqkv.weight``) and the Hugging Face-style one of LlamaGen-T2I
(``model.layers.{i}.self_attn.q_proj.weight``). Rotary pairs are interleaved in both.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.families.config_files import Dialect, config_from, side_of
from lantern_jax.families.llamagen.model import (
    IMAGENET_CLASSES,
    SIZES,
    CaptionConditioning,
    LlamaGen,
    LlamaGenConfig,
)
from lantern_jax.families.token_weights import language_names, language_sizes, read_model
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.transformer import layers_alike
from lantern_jax.tensors.layer_names import deciding_shapes, layer_table
from lantern_jax.tensors.matching import Entry, transpose

WHAT = "LlamaGen GPT"
# Its own program writes what the picture is conditioned on as the type.
DIALECT = Dialect(LlamaGenConfig, "llama|llamagen|[ct]2i", {"block_size": "grid"}, {"block_size": side_of})
ORIGINAL_NAMES = {
    "tokens": "tok_embeddings.weight",
    "labels": "cls_embedding.embedding_table.weight",
    "unconditional": "cls_embedding.uncond_embedding",
    "fc1": "cls_embedding.cap_proj.fc1.weight",
    "fc2": "cls_embedding.cap_proj.fc2.weight",
    "norm": "norm.weight",
    "head": "output.weight",
    "attention_norm": "layers.{i}.attention_norm.weight",
    "feed_forward_norm": "layers.{i}.ffn_norm.weight",
    "qkv": "layers.{i}.attention.wqkv.weight",
    "out": "layers.{i}.attention.wo.weight",
    "gate": "layers.{i}.feed_forward.w1.weight",
    "up": "layers.{i}.feed_forward.w3.weight",
    "down": "layers.{i}.feed_forward.w2.weight",
}
HUGGING_FACE_NAMES = language_names("model.") | {
    "labels": "model.cls_embedding.embedding_table.weight",
    "unconditional": "model.cls_embedding.uncond_embedding",
    "fc1": "model.cls_embedding.cap_proj.fc1.weight",
    "fc2": "model.cls_embedding.cap_proj.fc2.weight",
}


def convert_gpt(
    tensors: Mapping[str, Any], config: LlamaGenConfig | Mapping[str, Any] | None = None, **reading: Any
) -> tuple[LlamaGenConfig, dict[str, Any]]:
    """Converts published tensors of either layout (``token_weights``), class- or caption-conditional.

    Shapes do not show the number of heads, which is known for published sizes, and the grid, 16 unless given.
    """
    names = gpt_names(tensors)
    if not isinstance(config, LlamaGenConfig):
        config = gpt_config_from_shapes(tensors, config)
    return config, read_model(tensors, gpt_table(config, names), WHAT, **reading)


def gpt_names(tensors: Iterable[str]) -> dict[str, str]:
    """Returns the names of the layout that the tensors are in."""
    hugging_face = HUGGING_FACE_NAMES["tokens"] in tensors or HUGGING_FACE_NAMES["head"] in tensors
    return HUGGING_FACE_NAMES if hugging_face else ORIGINAL_NAMES


def gpt_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> LlamaGenConfig:
    """Infers the config (``token_weights``); raises LanternError too where the number of heads is not known."""
    names = gpt_names(tensors)
    found = language_sizes(tensors, names, WHAT)
    labels = names["labels"] in tensors
    table = names["labels" if labels else "unconditional"]
    fields = ("num_labels",) if labels else ("caption_length", "caption_dim")
    found |= zip(fields, deciding_shapes(tensors, {table: 2}, WHAT)[table], strict=False)
    heads = {(layers, dim): count for layers, count, dim in SIZES.values()}
    return config_from(DIALECT, found, settings, heads.get((found["num_layers"], found["dim"])))


def gpt_table(config: LlamaGenConfig, names: Mapping[str, str]) -> dict[str, Entry]:
    """Lists {published name: Entry} of a GPT."""
    dim, transformer = config.dim, config.transformer
    table = {names["tokens"]: Entry(("tokens", "embedding"), (config.vocab_size, dim))}
    if config.num_labels:
        table[names["labels"]] = Entry(("labels", "embedding"), (config.num_labels, dim))
    else:
        shape = (config.caption_length, config.caption_dim)
        table[names["unconditional"]] = Entry(("caption", "unconditional"), shape)
        table[names["fc1"]] = Entry(("caption", "fc1", "kernel"), (dim, config.caption_dim), transpose)
        table[names["fc2"]] = Entry(("caption", "fc2", "kernel"), (dim, dim), transpose)
    for i in range(config.num_layers):
        table |= layer_table(names, i, transformer, interleaved=True)
    table[names["norm"]] = Entry(("transformer", "norm", "scale"), (dim,))
    table[names["head"]] = Entry(("head", "kernel"), (config.vocab_size, dim), transpose)
    return table


@layers_alike
def gpt_shapes(config: LlamaGenConfig) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``LlamaGen(config).init`` makes."""
    if config.num_labels:
        conditioning: Any = jnp.zeros((1, config.label_slots), jnp.int32)
    else:
        features = jax.ShapeDtypeStruct((1, config.caption_length, config.caption_dim), jnp.float32)
        conditioning = CaptionConditioning(features, jax.ShapeDtypeStruct(features.shape[:2], jnp.bool_))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(LlamaGen(config).init, jax.random.key(0), conditioning, tokens)


def random_conditioning(config: LlamaGenConfig, count: int) -> Any:
    """Returns conditioning for ``count`` prompts: labels (different ones while there are any), or caption features."""
    if config.num_labels:
        labels = np.arange(count, dtype=np.int32) % min(IMAGENET_CLASSES, config.num_labels - 1)
        return np.repeat(labels[:, None], config.label_slots, axis=1)
    shape = (count, config.caption_length, config.caption_dim)
    features = np.random.default_rng(0).standard_normal(shape, np.float32)
    return CaptionConditioning(features, np.ones(shape[:2], bool))


_place = partial(
    taming_place, level=("conv_blocks", "conv_blocks"), block="res", middle={}, coarsest_first=True
)
# `encoder.conv_blocks.{l}.res.{b}`, `.attn.{b}`, `encoder.mid.{0,1,2}`, the same for the decoder.
LLAMAGEN = VQLayout("LlamaGen VQ tokenizer", _place, True, (r"quantize\.codebook_used",))
convert_vq = partial(read_vq, layout=LLAMAGEN)
