"""Converts Emu3.5-Image's published transformer and its IBQ tokenizer to our parameter trees."""

from functools import partial

from lantern_jax.families.config_files import Dialect
from lantern_jax.families.emu3_5.model import Emu35Config
from lantern_jax.families.token_weights import language_config, language_names, read_language
from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.vq import VQConfig

WHAT = "Emu3.5 model"
DIALECT = Dialect(
    Emu35Config, "[Ee]mu3.*", {"eol_token_id": "row_end", "eoi_token_id": "image_end"}, harmless=("vocab_size",)
)  # fmt: skip
NAMES = language_names("model.")
convert_emu35 = partial(read_language, NAMES, WHAT)
emu35_config_from_shapes = partial(language_config, DIALECT, NAMES, WHAT)
# Ignored: the networks that the training loss used. A code is chosen by its product with what is encoded.
IBQ = VQLayout("IBQ tokenizer", taming_place, False, (r"loss\..*", r"discriminator\..*"), by_product=True)
convert_ibq = partial(read_vq, layout=IBQ)


def ibq_tokenizer() -> VQConfig:
    """Returns the config of the published tokenizer."""
    return VQConfig(
        ch=256, ch_mult=(1, 1, 2, 2, 4), z_channels=256, codebook_size=131072, codebook_dim=256, l2_norm=False,
        encoder_blocks=4, decoder_blocks=5, by_product=True,
    )  # fmt: skip
