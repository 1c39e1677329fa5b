"""Prompts to conditioning: what the encoders of all families share.

Conditioning is on the host and has conditional rows only, in leaves [n, ...]: the target adds the unconditional row. A
batch of it is ``leaf[rows]`` for every leaf.

Axes: n prompts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_text
from lantern_jax.models.t5 import T5Config
from lantern_jax.text.encoded import EncodedPrompts
from lantern_jax.text.t5 import check_tokenizer
from lantern_jax.text.tokenizers import TextTokenizer, load_tokenizer
from lantern_jax.text.vocabulary import Vocabulary

# Labels, or a family's record of arrays, with leaves [n, ...]; caption features may be packed.
Conditioning = PyTree
# One negative prompt per prompt, or None.
Negatives = Sequence[str] | None


@dataclass(frozen=True)
class PromptParts:
    """The parts of a checkpoint that encode prompts.

    Attributes:
        config: the target's.
        vocabulary: the words of its labels, or None.
        text_tokenizer: the file of its text tokenizer, or None.
        text_encoder: the config of its text encoder, or None.
        read_text_encoder: dtype -> the text encoder's parameters, on a device.
        strict_words: whether a word that the vocabulary does not know is an error; otherwise it is ignored.
    """

    config: Any
    vocabulary: Vocabulary | None = None
    text_tokenizer: Path | None = None
    text_encoder: T5Config | None = None
    read_text_encoder: Callable[[Any], PyTree] | None = None
    strict_words: bool = False

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The text tokenizer; raises LanternError if it is missing, damaged or not the text encoder's."""
        tokenizer = load_tokenizer(self.tokenizer_file)
        if self.text_encoder is not None:
            check_tokenizer(tokenizer, self.text_encoder.vocab_size, self.tokenizer_file)
        return tokenizer

    @property
    def tokenizer_file(self) -> Path:
        """The text tokenizer's file; raises LanternError if there is none."""
        if self.text_tokenizer is None:
            raise LanternError(
                "this checkpoint has no text tokenizer: convert it with one, or give encoded prompts"
            )
        return self.text_tokenizer


class PromptEncoder(ABC):
    """Encodes prompts for one target. The text tokenizer stays in memory, a text encoder does not.

    Attributes:
        kind: what the target takes: "labels", "captions" or "guided tokens".
        fields: the arrays of its encoded prompts.
        negative_fields: the additional arrays of prompts with negative prompts.
        takes_negative: whether negative prompts are allowed.
    """

    kind: str
    fields: tuple[str, ...]
    negative_fields: tuple[str, ...] = ()
    takes_negative: bool = False

    def __init__(self, parts: PromptParts):
        self.parts = parts
        self.config = parts.config

    def prepare(
        self, prompts: Sequence[str | int], dtype: Any = np.float32, negative: Negatives = None
    ) -> tuple[Callable[[], Conditioning], tuple[str, ...]]:
        """Checks prompts and encodes them, once, but for what a text encoder does; arguments and errors as ``encode``.

        Returns a function that returns what ``encode`` would, and a line on what is ignored of the prompts, and one of
        negative ones, which it also warns with.
        """
        made = self.encode(prompts, dtype, negative)
        return lambda: made, ignored_in(self.ignored_of, prompts, negative)

    def ignored_of(self, prompts: Sequence[str | int]) -> str:
        """Returns a line on what is ignored of prompts; empty if nothing is."""
        return ""

    @abstractmethod
    def encode(
        self, prompts: Sequence[str | int], dtype: Any = np.float32, negative: Negatives = None
    ) -> Conditioning:
        """Encodes n prompts to conditioning with leaves [n, ...].

        Args:
            prompts: class numbers or ImageNet names for class-conditional models, else text.
            dtype: of a text encoder's parameters, matrix products and features.
            negative: n texts that guidance leads away from; only if the encoder ``takes_negative``.

        Raises:
            LanternError: no prompts, an empty one, an unknown word or class, or a checkpoint without the parts that
                encode text.
        """

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps a text encoder, once read, in memory inside this context."""
        yield

    def to_encoded(self, prompts: Sequence[str | int], conditioning: Conditioning) -> EncodedPrompts:
        """Returns conditioning as ``text.encoded.save_encoded`` takes it."""
        arrays = {name: getattr(conditioning, name, conditioning) for name in self.fields}
        others = {name: getattr(conditioning, name, None) for name in self.negative_fields}
        arrays |= {name: array for name, array in others.items() if array is not None}
        return EncodedPrompts(self.kind, tuple(map(str, prompts)), arrays)

    def from_encoded(self, encoded: EncodedPrompts) -> Conditioning:
        """Makes conditioning from encoded prompts; raises LanternError if they fit another kind or size of model."""
        if encoded.kind != self.kind:
            raise LanternError(
                f"prompts were encoded as {encoded.kind}, this checkpoint takes {self.kind}: encode them with it"
            )
        if set(encoded.arrays) not in ({*self.fields}, {*self.fields, *self.negative_fields}):
            raise LanternError(
                f"encoded prompts hold {', '.join(encoded.arrays)}, expected {', '.join(self.fields)}: "
                "encode them again"
            )
        check_some(encoded.prompts)
        return self._checked(**encoded.arrays)

    @abstractmethod
    def _checked(self, **arrays: np.ndarray) -> Conditioning:
        """Makes conditioning from the arrays ``fields``, perhaps with ``negative_fields``; raises LanternError if they
        do not fit the target."""


def ignored_in(line: Callable[[Sequence[str]], str], prompts, negative: Negatives) -> tuple[str, ...]:
    """Returns the lines about prompts and about negative ones that are not empty, and warns with them."""
    against = line(negative or ())
    lines = tuple(filter(None, [line(prompts), against and f"negative_prompt: {against}"]))
    errors.warn_of_ignored(lines)
    return lines


def check_texts(prompts: Sequence[str | int], negative: Negatives = None) -> None:
    """Raises LanternError unless prompts and negative ones are texts, none of them empty."""
    check_some(prompts)
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise LanternError(f"prompt {errors.quoted(prompt)} is not text: this checkpoint takes words")
        check_text(prompt, "prompt")
        if not prompt.strip():
            raise LanternError("empty prompt: describe a picture in words")
    if negative is not None:
        with errors.of_negatives():
            check_texts(negative)


def check_some(prompts: Sequence[Any]) -> None:
    if not len(prompts):
        raise LanternError("no prompts: give at least one")
