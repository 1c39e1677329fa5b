"""Prompts of GLM-Image: the text, the sizes of the picture's grid and of the preview's, and the mark of a picture."""

from lantern_jax.models.sizes import shape_of
from lantern_jax.text.guided import ShapedEncoder

SIZE, PICTURE = "<sop>{} {}<eop>", "<|dit_token_16384|>"


class GlmImageEncoder(ShapedEncoder):
    """The prompt and what follows it; the row that guidance compares it with has the negative prompt, or no text.

    Published by zai-org (``GlmImageProcessor`` of transformers), without guidance.
    """

    # Codes come first in the published vocabulary.
    text_begins_at = 0

    def rows(self, prompt, negative):
        end = SIZE.format(*shape_of(self.config)) + SIZE.format(*self.config.preview)
        encode, mark = self.parts.tokenizer.encode, self.special(PICTURE)
        return tuple([*encode(text + end), mark] for text in (prompt, negative or ""))
