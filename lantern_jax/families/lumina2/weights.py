"""Converts Lumina-mGPT 2.0's published files, transformers' Chameleon and MoVQGAN, to our parameter trees."""

from dataclasses import replace
from functools import partial

from lantern_jax.families.chameleon.weights import DIALECT as CHAMELEON
from lantern_jax.families.chameleon.weights import chameleon_config, convert_chameleon
from lantern_jax.families.lumina2.model import Lumina2Config
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.vq import VQConfig

WHAT = "Lumina-mGPT 2.0 model"
DIALECT = replace(CHAMELEON, config=Lumina2Config, harmless=("vocab_size",))
# Ignored: the networks that the training loss used, and training's averages.
MOVQGAN = VQLayout("MoVQGAN", taming_place, False, (r"loss\..*", r"ema_.*"))
convert_movqgan = partial(read_vq, layout=MOVQGAN)
convert_lumina2 = partial(convert_chameleon, what=WHAT)
lumina2_config_from_shapes = partial(chameleon_config, DIALECT, WHAT)


def movqgan() -> VQConfig:
    """Returns the config of MoVQGAN-270M."""
    return VQConfig(
        ch=256, ch_mult=(1, 2, 2, 4), z_channels=4, codebook_size=16384, codebook_dim=4, l2_norm=False,
        code_norm=True,
    )  # fmt: skip
