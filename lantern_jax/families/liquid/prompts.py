"""Prompts of Liquid: each with the row that guidance compares it with."""

from lantern_jax.text.guided import GuidedEncoder

# Liquid's tokens for the beginning of a text and of a picture, its task, and what a prompt is compared with.
LIQUID_BEGIN, LIQUID_PICTURE = "<bos>", "<boi>"
LIQUID_TASK, LIQUID_NOTHING = " Generate an image based on this description.", "<unconditional>"


class LiquidEncoder(GuidedEncoder):
    """Liquid's prompts followed by the task, compared with a negative prompt's or the text "<unconditional>".

    Published by FoundationVision/Liquid (``evaluation/inference_t2i.py``).
    """

    def rows(self, prompt, negative):
        begin, _ = map(self.special, (LIQUID_BEGIN, LIQUID_PICTURE))
        against = LIQUID_NOTHING if negative is None else negative + LIQUID_TASK
        texts = (f"{text}{LIQUID_PICTURE}" for text in (prompt + LIQUID_TASK, against))
        row, nothing = ([begin, *self.parts.tokenizer.encode(text)] for text in texts)
        return row, nothing
