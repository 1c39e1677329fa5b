"""Prompts of Emu3-Gen: each with the row that guidance compares it with."""

from functools import cached_property

from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.text.guided import ShapedEncoder

# Emu3's tokens for the beginning of a text and of a picture, and for its first code; by the config's names, those that
# follow each row of codes, the last row's end, and the frame's end.
EMU3_BEGIN, EMU3_PICTURE = "<|extra_203|>", "<|image start|>{rows}*{columns}<|image token|>"
EMU3_CODE = "<|visual token 000000|>"
EMU3_ENDS = {"row_end": "<|extra_200|>", "frame_end": "<|extra_201|>", "image_end": "<|image end|>"}
# What Emu3's published script adds to a prompt, and the text that guidance leads away from.
EMU3_WISH = " masterpiece, film grained, best quality."
EMU3_NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Emu3Encoder(ShapedEncoder):
    """Emu3's prompts with the wish for quality, compared with a negative prompt or that of its published script.

    Published by baaivision/Emu3 (``image_generation.py``). Raises LanternError for a tokenizer whose ids are not the
    config's.
    """

    ends = tuple(EMU3_ENDS)

    @cached_property
    def _checked_ends(self) -> None:
        config = self.config
        ids = {name: self.special(EMU3_ENDS[name]) for name in self.ends}
        wrong = [f"{name} {number}" for name, number in ids.items() if number != getattr(config, name)]
        if wrong or self.special(EMU3_CODE) != config.text_size:
            raise LanternError(
                f"{self.parts.tokenizer_file} has {', '.join(wrong) or 'another first code'}, other than the model: "
                "convert it with its own tokenizer"
            )

    def rows(self, prompt, negative):
        _ = self._checked_ends
        rows, columns = shape_of(self.config)
        picture = EMU3_PICTURE.format(rows=rows, columns=columns)
        texts = (f"{EMU3_BEGIN}{text}{picture}" for text in (prompt + EMU3_WISH, negative or EMU3_NEGATIVE))
        row, against = map(self.parts.tokenizer.encode, texts)
        return row, against
