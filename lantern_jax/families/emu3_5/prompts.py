"""Prompts of Emu3.5-Image: a task, the text and the header of a picture, and the same without a task and text."""

from lantern_jax.families.emu3.prompts import EMU3_BEGIN, EMU3_PICTURE
from lantern_jax.models.sizes import shape_of
from lantern_jax.text.guided import ShapedEncoder

# The beginning of the answer.
ANSWER = " ASSISTANT: <|extra_100|>"
TASK = "You are a helpful assistant for t2i task. USER: "
NO_TASK = "You are a helpful assistant. USER: "


class Emu35Encoder(ShapedEncoder):
    """Emu3.5's prompts, compared with a prompt without a task and a text, or with a negative prompt.

    Published by baaivision/Emu3.5 (``configs/example_config_t2i.py``, ``logits_processor.py``).
    """

    def rows(self, prompt, negative):
        self.special(EMU3_BEGIN)
        rows, columns = shape_of(self.config)
        end = ANSWER + EMU3_PICTURE.format(rows=rows, columns=columns)
        against = NO_TASK if negative is None else TASK + negative
        return tuple(
            self.parts.tokenizer.encode(EMU3_BEGIN + text + end) for text in (TASK + prompt, against)
        )
