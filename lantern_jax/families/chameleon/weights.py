"""Converts Chameleon's published transformer (Anole-7B, Lumina-mGPT-7B; Hugging Face names) to our parameter tree.

Rows of the embedding table are put in the order of stream ids, and the head keeps the codes' rows only. Rotary pairs
are half-split, like ours.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.chameleon.prompts import ChameleonVocabulary, code_tokens, read_names
from lantern_jax.families.config_files import Dialect, config_from
from lantern_jax.families.token_weights import language_names, language_sizes, published_table, read_model
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.io.errors import LanternError
from lantern_jax.models.tokens import GuidedTokensConfig
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.layer_names import deciding_shapes, heads_of_norm
from lantern_jax.text.encoders import PromptParts

WHAT = "Chameleon model"
DIALECT = Dialect(ChameleonConfig, "chameleon(_xllmx|_vqgan)?|lumina2")
CHAMELEON_NAMES = language_names("model.")
QUERY_NORM = CHAMELEON_NAMES["query_norm"].format(i=0) + ".weight"
# The picture encoder that Hugging Face ships inside the model: the tokenizer's own file has it too.
ENCODER_PREFIX = "model.vqmodel."


def convert_chameleon(
    tensors: Mapping[str, Any],
    config: GuidedTokensConfig,
    *,
    order: Int[np.ndarray, " vocab"] | None = None,
    what: str = WHAT,
    **reading: Any,
) -> tuple[GuidedTokensConfig, dict[str, Any]]:
    """Converts published tensors (``token_weights``); the picture encoder in them is left out on purpose.

    Args:
        order: published id of every stream id (``ChameleonVocabulary.order``); None where codes' ids follow the text's.
        what: the model, in messages.
    """
    if order is not None and len(order) != config.vocab_size:
        raise LanternError(
            f"the vocabulary has {len(order)} ids, the embedding table {config.vocab_size}: "
            "give the tokenizer file of this model"
        )
    norm = tensors.get(QUERY_NORM)
    rows = None if norm is None else norm.shape[0]
    table = published_table(CHAMELEON_NAMES, config, order=order, norm_rows=rows)
    return config, read_model(tensors, table, what, (ENCODER_PREFIX,), **reading)


def chameleon_config(
    dialect: Dialect, what: str, tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> Any:
    """Infers the config (``token_weights``); the norm of queries shows the number of heads."""
    found = language_sizes(tensors, CHAMELEON_NAMES, what)
    norm = deciding_shapes(tensors, {QUERY_NORM: 2}, what)[QUERY_NORM]
    return config_from(dialect, found | {"num_heads": heads_of_norm(norm, found["dim"])[0]}, settings)


chameleon_config_from_shapes = partial(chameleon_config, DIALECT, WHAT)


def codes_of(files: Mapping[str, Path]) -> tuple[dict[str, int], str]:
    """Returns the number of codes in the vocabulary file, as ``Published.more_settings`` requires."""
    return {"num_codes": len(code_tokens(read_names(files["text_tokenizer"])))}, ""


def published_order(config: ChameleonConfig, text_tokenizer: Path | None) -> Int[np.ndarray, " vocab"]:
    """Returns the published id of every row of the table, as ``Family.published_order`` requires."""
    file = PromptParts(config, text_tokenizer=text_tokenizer).tokenizer_file
    return ChameleonVocabulary.from_file(file, config.vocab_size).order


def tokenizer() -> VQConfig:
    """Returns the config of the VQGAN that Chameleon, Anole and Lumina-mGPT share."""
    return VQConfig(codebook_size=8192, codebook_dim=256, l2_norm=False, level_attention=False)


# Ignored: the networks that the training loss used, a perceptual one and the discriminator.
VQGAN = VQLayout("Chameleon VQGAN", taming_place, False, (r"loss\..*",))
convert_vqgan = partial(read_vq, layout=VQGAN)
