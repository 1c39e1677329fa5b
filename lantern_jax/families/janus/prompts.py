"""Prompts of Janus-Pro: each with the row that guidance compares it with."""

from lantern_jax.text.guided import GuidedEncoder

JANUS_CHAT = "<|User|>: {prompt}\n\n<|Assistant|>:"
# Janus's tokens for the beginning of a text, padding, and the beginning of a picture.
JANUS_MARKS, JANUS_START = ("<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>"), "<begin_of_image>"  # noqa: RUF001


class JanusEncoder(GuidedEncoder):
    """Janus-Pro's chat with the prompt as the question; the unconditional row has padding between the first and
    last ids, or is the chat with a negative prompt.

    Published by deepseek-ai/Janus (``generation_inference.py``).
    """

    def rows(self, prompt, negative):
        begin, padding, start = map(self.special, (*JANUS_MARKS, JANUS_START))

        def chat(text: str) -> list[int]:
            return [begin, *self.parts.tokenizer.encode(JANUS_CHAT.format(prompt=text.strip()) + JANUS_START)]

        row = chat(prompt)
        return row, [begin, *[padding] * (len(row) - 2), start] if negative is None else chat(negative)
