"""Prompts of Emu3-Gen: each with the row that guidance compares it with."""

from lantern_jax.models.sizes import shape_of
from lantern_jax.text.guided import ShapedEncoder

# Emu3's tokens for the beginning of a text and of a picture.
EMU3_BEGIN, EMU3_PICTURE = "<|extra_203|>", "<|image start|>{rows}*{columns}<|image token|>"
# What Emu3's published script adds to a prompt, and the text that guidance leads away from.
EMU3_WISH = " masterpiece, film grained, best quality."
EMU3_NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Emu3Encoder(ShapedEncoder):
    """Emu3's prompts with the wish for quality, compared with a negative prompt or that of its published script.

    Published by baaivision/Emu3 (``image_generation.py``).
    """

    def rows(self, prompt, negative):
        self.special(EMU3_BEGIN)
        rows, columns = shape_of(self.config)
        picture = EMU3_PICTURE.format(rows=rows, columns=columns)
        texts = (f"{EMU3_BEGIN}{text}{picture}" for text in (prompt + EMU3_WISH, negative or EMU3_NEGATIVE))
        row, against = map(self.parts.tokenizer.encode, texts)
        return row, against
