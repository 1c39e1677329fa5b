"""Converts Emu3-Gen's published transformer to our parameter tree; codes have the last ids there and the first here."""

from collections.abc import Mapping
from typing import Any

from lantern_jax.families.config_files import Dialect, side_of
from lantern_jax.families.emu3.model import Emu3Config
from lantern_jax.families.token_weights import language_config, language_names, read_language

WHAT = "Emu3 model"
# A code is 8 pixels wide.
DIALECT = Dialect(
    Emu3Config, "[Ee]mu3|emu3_text_model",
    {"image_area": "grid", "eol_token_id": "row_end", "eof_token_id": "frame_end", "eoi_token_id": "image_end"},
    {"image_area": lambda pixels: side_of(pixels) // 8 if isinstance(pixels, int) else pixels},
    harmless=("vocab_size",),
)  # fmt: skip
# The authors' layout, and those of transformers since 4.52 and before.
LAYOUTS = (
    language_names("model."),
    language_names("model.text_model."),
    language_names("text_model.model.", "text_model.lm_head.weight"),
)
TOKENIZERS = ("model.vqmodel.", "vqmodel.")


def emu3_names(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the layout that the tensors are in."""
    return next((names for names in LAYOUTS if names["tokens"] in tensors), LAYOUTS[0])


def convert_emu3(
    tensors: Mapping[str, Any], config: Emu3Config, **reading: Any
) -> tuple[Emu3Config, dict[str, Any]]:
    """Converts published tensors (``token_weights``); a picture tokenizer among them is left out on purpose."""
    return read_language(emu3_names(tensors), WHAT, tensors, config, others=TOKENIZERS, **reading)


def emu3_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> Emu3Config:
    """Infers the config (``token_weights``)."""
    return language_config(DIALECT, emu3_names(tensors), WHAT, tensors, settings)
