"""Converts Janus-Pro's published files, in the original layout or that of transformers, to our parameter tree.

Axes: D model width, V codes, C channels of a code.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lantern_jax.families.config_files import Dialect, config_from
from lantern_jax.families.janus.model import SIZES, JanusConfig
from lantern_jax.families.llamagen.weights import LLAMAGEN
from lantern_jax.families.token_weights import (
    language_names,
    language_sizes,
    language_table,
    read_model,
)
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.layer_names import deciding_shapes
from lantern_jax.tensors.matching import Entry, transpose

WHAT = "Janus-Pro model"
# What stands among the tensors for the model's input of each code.
CODE_ROWS = "(codes through the aligner)"
# The head of the text, tied or not, is not read.
DIALECT = Dialect(
    JanusConfig, "multi_modality|janus|llama", only={"tie_word_embeddings": (False, True)}, harmless=("vocab_size",)
)  # fmt: skip
ORIGINAL_NAMES = language_names("language_model.model.", "language_model.lm_head.weight") | {
    "codes": "gen_embed.weight",
    "fc1": "gen_aligner.layers.0",
    "fc2": "gen_aligner.layers.2",
    "hidden_head": "gen_head.output_mlp_projector",
    "code_head": "gen_head.vision_head",
    # The parts that understand pictures, and the tokenizer.
    "others": ("vision_model.", "aligner.", "gen_vision_model."),
}
HUGGING_FACE_NAMES = language_names("model.language_model.") | {
    "codes": "model.generation_embeddings.weight",
    "fc1": "model.generation_aligner.fc1",
    "fc2": "model.generation_aligner.hidden_layers.0",
    "hidden_head": "model.generation_head.proj_out",
    "code_head": "model.generation_head.vision_head",
    "others": ("model.vision_model.", "model.aligner.", "model.vqmodel."),
}
# LlamaGen's tokenizer under taming-transformers' names, except that the decoder's levels are coarsest first.
HUGGING_FACE_VQ = VQLayout("Janus VQ tokenizer", partial(taming_place, coarsest_first=True), True, ())


def janus_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the names of the layout that the tensors are in."""
    return HUGGING_FACE_NAMES if HUGGING_FACE_NAMES["codes"] in tensors else ORIGINAL_NAMES


def convert_janus(
    tensors: Mapping[str, Any], config: JanusConfig, **reading: Any
) -> tuple[JanusConfig, dict[str, Any]]:
    """Converts published tensors (``token_weights``); the parts that understand pictures, the text head and the
    tokenizer are left out on purpose.
    """
    names = janus_names(tensors)
    others = (*names["others"], names["head"])
    pictures, table = _picture_table(config, names, tensors), janus_table(config, names)
    aligner = read_model(tensors, pictures, WHAT, (*others, *table), dtype=np.float32)["params"]
    # Beside the published tensors, since the table of tokens begins with them.
    codes = {CODE_ROWS: np.asarray(jax.jit(_code_rows)(aligner))}
    return config, read_model({**tensors, **codes}, table, WHAT, (*others, *pictures), **reading)


def _code_rows(aligner: Mapping[str, Any]) -> Float[np.ndarray, "V D"]:
    """Computes the model's input for each code: its embedding passed through the aligner."""

    def dense(x, part):
        product = jnp.dot(x, part["kernel"], precision="highest")
        return product + jnp.broadcast_to(part["bias"], product.shape)

    return dense(nn.gelu(dense(aligner["codes"], aligner["fc1"]), approximate=False), aligner["fc2"])


def janus_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> JanusConfig:
    """Infers the config (``token_weights``)."""
    names = janus_names(tensors)
    head = f"{names['code_head']}.weight"
    found = language_sizes(tensors, names, WHAT)
    codes, hidden = deciding_shapes(tensors, {head: 2}, WHAT)[head]
    found |= {"vocab_size": codes + found["vocab_size"], "num_codes": codes}
    found["head_hidden_dim"] = None if hidden == found["dim"] else hidden
    heads = {(layers, dim): count for layers, count, dim, _ in SIZES.values()}
    known = heads.get((found["num_layers"], found["dim"]))
    return config_from(DIALECT, found, settings, known)


def janus_table(config: JanusConfig, names: Mapping[str, Any]) -> dict[str, Entry]:
    """Lists {published name: Entry} of the language model and the code head."""
    rows, dim, hidden = (config.text_size, config.dim), config.dim, config.head_hidden_dim or config.dim
    whole, text = (config.vocab_size, dim), (slice(config.num_codes, None),)
    codes = (slice(config.num_codes),)
    return {
        CODE_ROWS: Entry(("tokens", "embedding"), (config.num_codes, dim), whole=whole, index=codes),
        names["tokens"]: Entry(("tokens", "embedding"), rows, whole=whole, index=text),
        **language_table(names, config),
        **_linear(names["hidden_head"], ("head", "hidden"), hidden, dim),
        **_linear(names["code_head"], ("head", "codes"), config.num_codes, hidden),
    }


def _picture_table(config: JanusConfig, names: Mapping[str, Any], tensors: Mapping[str, Any]):
    """Lists {published name: Entry} of the tensors that turn codes into the model's inputs."""
    name, dim = names["codes"], config.dim
    channels = deciding_shapes(tensors, {name: 2}, WHAT)[name][1]
    return {
        name: Entry(("codes",), (config.num_codes, channels)),
        **_linear(names["fc1"], ("fc1",), dim, channels),
        **_linear(names["fc2"], ("fc2",), dim, dim),
    }


def _linear(name: str, path: tuple[str, ...], outputs: int, inputs: int) -> dict[str, Entry]:
    return {
        f"{name}.weight": Entry((*path, "kernel"), (outputs, inputs), transpose),
        f"{name}.bias": Entry((*path, "bias"), (outputs,)),
    }


def convert_janus_vq(tensors: Mapping[str, Any]) -> tuple[VQConfig, dict[str, Any]]:
    """Converts the tokenizer's tensors, in either layout, as ``read_vq`` does."""
    layout = HUGGING_FACE_VQ if "encoder.mid.block_1.conv1.weight" in tensors else LLAMAGEN
    return read_vq(tensors, layout=layout)
