"""Converts Chameleon's published transformer (Anole-7B, Lumina-mGPT-7B; Hugging Face names) to our parameter tree.

Rows of the embedding table are put in the order of stream ids, and the head keeps the codes' rows only. Rotary pairs
are half-split, like ours.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.protocols import TokenConditioning
from lantern_jax.io.errors import LanternError
from lantern_jax.models.chameleon import Chameleon, ChameleonConfig
from lantern_jax.models.transformer import layers_alike
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.layer_names import (
    HEAD_NORM_NAMES,
    LLAMA_LAYER_NAMES,
    buffers,
    config_from,
    count_layers,
    deciding_shapes,
    heads_of_norm,
    layer_table,
)
from lantern_jax.tensors.matching import Entry, read_tensors, reordered_rows, transpose
from lantern_jax.text.chameleon import ChameleonVocabulary
from lantern_jax.text.encoders import PromptParts

CHAMELEON_NAMES = {
    "tokens": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    **{part: f"model.{name}" for part, name in (LLAMA_LAYER_NAMES | HEAD_NORM_NAMES).items()},
}
QUERY_NORM = CHAMELEON_NAMES["query_norm"].format(i=0) + ".weight"
# The picture encoder that Hugging Face ships inside the model: the tokenizer's own file has it too.
ENCODER_PREFIX = "model.vqmodel."
# Cells per side in the published models.
GRIDS = {"anole": 32, "lumina": 48}

# Tokens per made-up prompt, as many as in a caption.
_PROMPT_TOKENS = 64


def convert_chameleon(
    tensors: Mapping[str, np.ndarray],
    config: ChameleonConfig | Mapping[str, Any] | None = None,
    *,
    order: Int[np.ndarray, " vocab"],
    num_codes: int,
    layout: str = "anole",
    **reading: Any,
) -> tuple[ChameleonConfig, dict[str, Any]]:
    """Converts published tensors to the config and ``{"params": ...}`` of a Chameleon model.

    Args:
        tensors: {name: array}; the picture encoder in them (``model.vqmodel.*``) is left out on purpose.
        config: the model's ``config.json`` or a mapping of ``ChameleonConfig`` fields; or the whole config.
        order: published id of every stream id (``ChameleonVocabulary.order``).
        num_codes: V, how many of them are codes.
        layout: "anole" or "lumina"; also decides the grid unless ``config`` has it.
        reading: ``dtype`` and ``progress`` of ``read_tensors``.

    Raises:
        ValueError: one line that lists every missing, unexpected and misshapen tensor, or says which setting
            contradicts the shapes.
    """
    if not isinstance(config, ChameleonConfig):
        config = chameleon_config_from_shapes(tensors, config, num_codes, layout)
    if len(order) != config.vocab_size:
        raise LanternError(
            f"the vocabulary has {len(order)} ids, the embedding table {config.vocab_size}: "
            "give the tokenizer file of this model"
        )
    ignored = [*buffers(tensors), *(name for name in tensors if name.startswith(ENCODER_PREFIX))]
    norm = tensors.get(QUERY_NORM)
    table = chameleon_table(config, order, None if norm is None else norm.shape[0])
    params = read_tensors(tensors, table, what="Chameleon model", ignored=ignored, **reading)
    return config, {"params": params}


def chameleon_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None, num_codes: int, layout: str
) -> ChameleonConfig:
    """Infers the config of a model from names and shapes (anything with ``.shape``), and ``settings`` for the rest.

    Raises:
        ValueError: tensors that decide a size are missing; a setting is unknown or contradicts the shapes.
    """
    names = CHAMELEON_NAMES
    gate = names["gate"].format(i=0)
    shapes = deciding_shapes(tensors, {names["tokens"]: 2, gate: 2, QUERY_NORM: 2}, "Chameleon model")
    vocab_size, dim = shapes[names["tokens"]]
    found = {
        "dim": dim, "vocab_size": vocab_size, "hidden_dim": shapes[gate][0],
        "num_heads": heads_of_norm(shapes[QUERY_NORM], dim)[0],
        "num_layers": count_layers(tensors, names["attention_norm"]), "num_codes": num_codes, "layout": layout,
    }  # fmt: skip
    settings = {"grid": GRIDS.get(layout)} | dict(settings or {})
    return config_from(ChameleonConfig, found, settings, None)


def chameleon_table(
    config: ChameleonConfig, order: Int[np.ndarray, " vocab"], norm_rows: int | None = None
) -> dict[str, Entry]:
    """Lists {published name: Entry}; ``order`` as in ``convert_chameleon``, ``norm_rows`` as in ``layer_table``."""
    names, shape = CHAMELEON_NAMES, (config.vocab_size, config.dim)
    codes = reordered_rows(order[: config.num_codes])
    table = {
        names["tokens"]: Entry(("tokens", "embedding"), shape, reordered_rows(order)),
        names["norm"]: Entry(("transformer", "norm", "scale"), (config.dim,)),
        names["head"]: Entry(("head", "kernel"), shape, lambda weight: transpose(codes(weight))),
    }
    for i in range(config.num_layers):
        table |= layer_table(names, i, config.transformer, interleaved=False, norm_rows=norm_rows)
    return table


@layers_alike
def chameleon_shapes(config: ChameleonConfig) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``Chameleon(config).init`` makes."""
    tokens = jax.ShapeDtypeStruct((1, 1), np.int32)
    conditioning = TokenConditioning(tokens, jax.ShapeDtypeStruct((1, 1), np.bool_))
    return jax.eval_shape(Chameleon(config).init, jax.random.key(0), conditioning)


def published_order(config: ChameleonConfig, text_tokenizer: Path | None) -> Int[np.ndarray, " vocab"]:
    """Returns the published id of every row of the table, as ``Family.published_order`` requires."""
    file = PromptParts(config, text_tokenizer=text_tokenizer).tokenizer_file
    return ChameleonVocabulary.from_file(file, config.vocab_size).order


def tokenizer() -> VQConfig:
    """Returns the config of the VQGAN that Chameleon, Anole and Lumina-mGPT share."""
    return VQConfig(codebook_size=8192, codebook_dim=256, l2_norm=False, level_attention=False)


def random_conditioning(config: ChameleonConfig, count: int) -> TokenConditioning:
    """Returns conditioning for ``count`` made-up prompts, each as long as a caption."""
    numbers = np.random.default_rng(0)
    words = numbers.integers(config.num_codes + 2, config.vocab_size, (count, _PROMPT_TOKENS))
    return TokenConditioning(words.astype(np.int32), np.ones(words.shape, bool))
