"""Prompts of Lumina-mGPT 2.0: those of Lumina-mGPT through Qwen's tokenizer, for pictures of any shape."""

from pathlib import Path

from lantern_jax.families.chameleon.prompts import LUMINA_TASK, SPECIAL_NAMES
from lantern_jax.families.lumina2.model import CELL, Lumina2Config
from lantern_jax.io.files import read_json
from lantern_jax.models.sizes import shape_of
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.guided import ShapedEncoder
from lantern_jax.text.tokenizers import MOST_BYTES

PIXELS_A_CODE = 8
# The beginning of prompts if no tokenizer_config.json names one.
BEGIN = "<|endoftext|>"


class Lumina2Encoder(ShapedEncoder):
    """Lumina-mGPT's task, the prompt and the picture's header; the unconditional row is the header alone, or a
    negative prompt's row.

    Published by Alpha-VLLM/Lumina-mGPT-2.0 (``data/item_processor.py``, ``inference_solver.py``), where the header is
    sampled too.
    """

    def rows(self, prompt, negative):
        sides = shape_of(self.config)
        height, width = (PIXELS_A_CODE * side for side in sides)
        names = SPECIAL_NAMES["image_start"], *(f"<reserved{8800 + side // CELL:05d}>" for side in sides)
        header = [self.special(name) for name in names]

        def whole(text: str) -> list[int]:
            turn = LUMINA_TASK.format(width=width, height=height) + text + SPECIAL_NAMES["separator"]
            return [self.config.begin, *self.parts.tokenizer.encode(turn), *header]

        return whole(prompt), header if negative is None else whole(negative)


def structuring_ids(text_tokenizer: Path) -> dict[str, int]:
    """Returns the config fields that a text tokenizer determines: ids of the tokens around prompts and rows.

    As in the published code, prompts begin with what the ``tokenizer_config.json`` beside it calls the beginning of a
    text, or else its end. Raises LanternError for another model's tokenizer.
    """
    beside = text_tokenizer.with_name("tokenizer_config.json")
    settings = read_json(beside, MOST_BYTES) if beside.is_file() else {}
    token = settings.get("bos_token") or settings.get("eos_token") or BEGIN
    names = {
        "begin": str(token.get("content") if isinstance(token, dict) else token),
        "row_end": SPECIAL_NAMES["row_end"],
        "image_end": SPECIAL_NAMES["image_end"],
    }
    encoder = Lumina2Encoder(PromptParts(Lumina2Config(), text_tokenizer=text_tokenizer))
    return {field: encoder.special(name) for field, name in names.items()}
