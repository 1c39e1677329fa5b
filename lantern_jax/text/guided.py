"""Prompts of models whose text and codes share a vocabulary, each with the row that guidance compares it with.

Stream ids are the codes, then the text's ids in the published order.

Axes: n prompts, P prefix length. Everything here is NumPy, on the host.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.protocols import GuidedTokens
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.tokens import TokenModel
from lantern_jax.text.encoders import PromptEncoder, check_texts
from lantern_jax.text.packed import bucket_of, check_lengths, padded_rows

# Ids of a prompt and of the row it is compared with, as published.
Rows = tuple[Sequence[int], Sequence[int]]


class GuidedEncoder(PromptEncoder):
    """Encodes text as a family's ``rows`` say; both rows of all prompts have the same length."""

    kind, takes_negative = "guided tokens", True
    fields = ("tokens", "mask", "unconditional", "unconditional_mask")

    @abstractmethod
    def rows(self, prompt: str, negative: str | None) -> Rows:
        """Returns published ids of a prompt and of its unconditional row: the published one, or a negative prompt's."""

    def encode(self, prompts, dtype=np.float32, negative=None):
        check_texts(prompts, negative)
        rows = [self.rows(*pair) for pair in zip(prompts, negative or [None] * len(prompts), strict=True)]
        check_lengths(prompts, [row for row, _ in rows])
        if negative is not None:
            with errors.of_negatives():
                check_lengths(negative, [row for _, row in rows])
        length = bucket_of([row for pair in rows for row in pair])
        parts = []
        for side in zip(*rows, strict=True):
            tokens, mask = padded_rows(side, length, left=True)
            parts += [self.to_stream(tokens), mask]
        return GuidedTokens(*parts)

    def to_stream(self, ids: Int[np.ndarray, "n P"]) -> Int[np.ndarray, "n P"]:
        """Returns published ids as stream ids; raises LanternError for ids that the model does not have."""
        if ids.min() < 0 or ids.max() >= self.config.text_size:
            raise LanternError(
                f"{self.parts.tokenizer_file} has ids up to {ids.max()}, the model {self.config.text_size}: "
                "convert it with its own tokenizer"
            )
        return (ids + np.int32(self.text_begins_at)) % np.int32(self.config.vocab_size)

    @property
    def text_begins_at(self) -> int:
        """The stream id of the published id 0; ids past the last row go on at 0."""
        return self.config.num_codes

    def special(self, name: str) -> int:
        """Returns the id of a structuring token; raises LanternError if the tokenizer has none of that name."""
        found = self.parts.tokenizer.encode(name)
        if len(found) != 1:
            raise LanternError(
                f"{self.parts.tokenizer_file} is not this model's tokenizer (it has no {name}): "
                "convert it with its own"
            )
        return found[0]

    def _checked(self, **arrays):
        made = GuidedTokens(**arrays)
        TokenModel.check(self.config, made)
        return made


class ShapedEncoder(GuidedEncoder):
    """A ``GuidedEncoder`` whose prompts name the picture's shape."""

    @property
    def kind(self) -> str:
        """Guided tokens, with the shape that prompts name."""
        rows, columns = shape_of(self.config)
        return f"guided tokens of {rows} x {columns} codes"
