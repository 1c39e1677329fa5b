"""Converts Emu3.5-Image's published transformer and its IBQ tokenizer to our parameter trees."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.families.config_files import Dialect, config_from, heads_of
from lantern_jax.families.emu3_5.model import Emu35Config
from lantern_jax.families.token_weights import (
    key_heads,
    language_names,
    language_sizes,
    published_table,
    read_model,
)
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.layer_names import HEAD_NORM_NAMES, deciding_shapes

WHAT = "Emu3.5 model"
DIALECT = Dialect(
    Emu35Config, "[Ee]mu3.*", "Emu3.*", {"eol_token_id": "row_end", "eoi_token_id": "image_end"},
    harmless="vocab_size image_area eof_token_id",
)  # fmt: skip
NAMES = {**language_names("model."), **{part: f"model.{name}" for part, name in HEAD_NORM_NAMES.items()}}
# Ignored: the networks that the training loss used. A code is chosen by its product with what is encoded.
IBQ = VQLayout("IBQ tokenizer", taming_place, False, (r"loss\..*", r"discriminator\..*"), by_product=True)
convert_ibq = partial(read_vq, layout=IBQ)


def convert_emu35(
    tensors: Mapping[str, Any],
    config: Emu35Config,
    order: Int[np.ndarray, " vocab"] | None = None,
    **reading: Any,
) -> tuple[Emu35Config, dict[str, Any]]:
    """Converts published tensors (``token_weights``)."""
    return config, read_model(tensors, published_table(NAMES, config, order=order), WHAT, **reading)


def emu35_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> Emu35Config:
    """Infers the config (``token_weights``)."""
    found = language_sizes(tensors, NAMES, WHAT)
    heads = heads_of(settings or {}, DIALECT)
    norm = NAMES["query_norm"].format(i=0) + ".weight"
    (found["head_width"],) = deciding_shapes(tensors, {norm: 1}, WHAT)[norm]
    found["kv_heads"] = key_heads(tensors, NAMES, heads, WHAT)
    return config_from(DIALECT, found, settings, heads)


def ibq_tokenizer() -> VQConfig:
    """Returns the config of the published tokenizer."""
    return VQConfig(
        ch=256, ch_mult=(1, 1, 2, 2, 4), z_channels=256, codebook_size=131072, codebook_dim=256, l2_norm=False,
        encoder_blocks=4, decoder_blocks=5, by_product=True,
    )  # fmt: skip
