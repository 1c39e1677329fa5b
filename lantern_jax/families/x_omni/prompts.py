"""Prompts of X-Omni: the text, and the header of a picture with its size in codes."""

from lantern_jax.models.sizes import shape_of
from lantern_jax.text.guided import ShapedEncoder

HEADER = "<SOM>{} {}<IMAGE>"


class XOmniEncoder(ShapedEncoder):
    """The prompt and the header; the row that guidance compares it with is a negative prompt's, or the header alone.

    Published by X-Omni-Team/X-Omni (``generate.py``), by default without guidance.
    """

    @property
    def text_begins_at(self) -> int:
        """Implements ``GuidedEncoder.text_begins_at``: tokens of pictures come first."""
        return self.config.picture_tokens

    def rows(self, prompt, negative):
        header = HEADER.format(*shape_of(self.config))
        self.special("<IMAGE>")
        return tuple(self.parts.tokenizer.encode(text + header) for text in (prompt, negative or ""))
