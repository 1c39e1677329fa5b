"""Converts Lumina-mGPT 2.0's published files, transformers' Chameleon and MoVQGAN, to our parameter trees."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.families.chameleon.weights import CHAMELEON_NAMES, ENCODER_PREFIX, QUERY_NORM
from lantern_jax.families.chameleon.weights import DIALECT as CHAMELEON
from lantern_jax.families.config_files import config_from
from lantern_jax.families.lumina2.model import Lumina2Config
from lantern_jax.families.token_weights import language_sizes, published_table, read_model
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.layer_names import deciding_shapes, heads_of_norm

WHAT = "Lumina-mGPT 2.0 model"
DIALECT = replace(CHAMELEON, config=Lumina2Config, harmless="vocab_size")
# Ignored: the networks that the training loss used, and training's averages.
MOVQGAN = VQLayout("MoVQGAN", taming_place, False, (r"loss\..*", r"ema_.*"))
convert_movqgan = partial(read_vq, layout=MOVQGAN)


def convert_lumina2(
    tensors: Mapping[str, Any],
    config: Lumina2Config,
    order: Int[np.ndarray, " vocab"] | None = None,
    **reading: Any,
) -> tuple[Lumina2Config, dict[str, Any]]:
    """Converts published tensors (``token_weights``); Chameleon's picture encoder among them, which is not used, is
    left out on purpose.
    """
    norm = tensors.get(QUERY_NORM)
    rows = None if norm is None else norm.shape[0]
    table = published_table(CHAMELEON_NAMES, config, order=order, norm_rows=rows)
    return config, read_model(tensors, table, WHAT, (ENCODER_PREFIX,), **reading)


def lumina2_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> Lumina2Config:
    """Infers the config (``token_weights``)."""
    found = language_sizes(tensors, CHAMELEON_NAMES, WHAT)
    norm = deciding_shapes(tensors, {QUERY_NORM: 2}, WHAT)[QUERY_NORM]
    return config_from(DIALECT, found, settings, heads_of_norm(norm, found["dim"])[0])


def movqgan() -> VQConfig:
    """Returns the config of MoVQGAN-270M."""
    return VQConfig(
        ch=256, ch_mult=(1, 2, 2, 4), z_channels=4, codebook_size=16384, codebook_dim=4, l2_norm=False,
        code_norm=True,
    )  # fmt: skip
