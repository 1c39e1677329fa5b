"""Prompts to conditioning: class numbers, words, captions through T5, or Chameleon's tokens.

Conditioning is on the host and has conditional rows only, in leaves [n, ...]: the target adds the unconditional row. A
batch of it is ``leaf[rows]`` for every leaf.

Axes: n prompts, C label slots, P prefix length, F caption feature width.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from lantern_jax.decoding.concrete import check_padding
from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_text
from lantern_jax.models.llamagen import IMAGENET_CLASSES, CaptionConditioning
from lantern_jax.models.t5 import T5Config
from lantern_jax.text.encoded import EncodedPrompts
from lantern_jax.text.imagenet import class_number
from lantern_jax.text.packed import PackedRows
from lantern_jax.text.t5 import caption_tokens, check_tokenizer, cut_of, encode_captions
from lantern_jax.text.tokenizers import TextTokenizer, load_tokenizer
from lantern_jax.text.vocabulary import Vocabulary

# Labels, or the record of a caption or token model with leaves [n, ...]; caption features may be packed.
Conditioning = (
    Int[np.ndarray, "n C"] | Int[np.ndarray, "n 2 C"] | CaptionConditioning | TokenConditioning | GuidedTokens
)
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
        kind: what the target takes: "labels", "captions", "tokens" or "guided tokens".
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
        return lambda: made, _ignored(self.ignored_of, prompts, negative)

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

    def from_arrays(
        self,
        conditioning: Int[np.ndarray, "n C"] | Float[np.ndarray, "n P F"],
        mask: Bool[np.ndarray, "n P"] | None = None,
    ) -> Conditioning:
        """Makes conditioning from arrays; ``mask`` None means no padding.

        Raises LanternError for a shape, a type or ids that do not fit the target, or one that takes prompts alone.
        """
        raise LanternError("this checkpoint takes prompts: give text, or what Pipeline.encode returned")

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
        return self._checked(**encoded.arrays)

    @abstractmethod
    def _checked(self, **arrays: np.ndarray) -> Conditioning:
        """Makes conditioning from the arrays ``fields``, perhaps with ``negative_fields``; raises LanternError if they
        do not fit the target."""


class LabelEncoder(PromptEncoder):
    """Words through the checkpoint's vocabulary or, if it has none, classes, which take no negative prompts.

    Raises LanternError if the config's unconditional labels are not the vocabulary's.
    """

    kind, fields = "labels", ("labels",)

    def __init__(self, parts: PromptParts):
        super().__init__(parts)
        null = () if parts.vocabulary is None else tuple(parts.vocabulary.null_labels().tolist())
        if null and null != parts.config.unconditional_labels:
            raise LanternError(
                f"the config's null_labels {parts.config.null_labels} are not the vocabulary's: give it {null}"
            )

    @property
    def takes_negative(self) -> bool:
        """Whether prompts are words."""
        return self.parts.vocabulary is not None

    def encode(self, prompts, dtype=np.float32, negative=None):
        vocabulary = self.parts.vocabulary
        if vocabulary is None:
            _check_some(prompts)
            return np.array([[_class(prompt, self.config.num_labels - 1)] for prompt in prompts], np.int32)
        labels = vocabulary.label_ids([vocabulary.completed(values) for values in self._parsed(prompts)])
        if negative is None:
            return labels
        with errors.of_negatives():  # Guidance leads away only from what is named.
            against = vocabulary.label_ids(self._parsed(negative))
        return np.stack([labels, against], axis=1)

    def ignored_of(self, prompts):
        return "" if self.parts.vocabulary is None else self.parts.vocabulary.ignored_of(prompts)

    def _parsed(self, prompts: Sequence[str]) -> list[tuple[int, ...]]:
        _check_some(prompts)
        for prompt in prompts:
            _check_text(prompt, "words, such as 'a lake at dusk'")
        return [self.parts.vocabulary.parse(prompt, self.parts.strict_words) for prompt in prompts]

    def from_arrays(self, conditioning, mask=None):
        return self._checked(np.asarray(conditioning))

    def _checked(self, labels):
        slots = self.config.label_slots
        if not (_fits(labels, 2, slots) or _fits(labels, slots)) or labels.dtype.kind not in "iu":
            raise LanternError(
                f"conditioning has shape {labels.shape}, {labels.dtype}: give whole numbers [n, {slots}]"
            )
        if labels.min() < 0 or labels.max() >= self.config.num_labels:
            raise LanternError(
                f"conditioning holds ids outside 0..{self.config.num_labels - 1}: give label ids of the model"
            )
        return labels.astype(np.int32)


class CaptionEncoder(PromptEncoder):
    """Captions through T5, whose parameters are read once per call and then dropped."""

    kind, fields = "captions", ("features", "mask")
    negative_fields, takes_negative = ("negative", "negative_mask"), True
    _read: dict[np.dtype, PyTree] | None = None

    def prepare(self, prompts, dtype=np.float32, negative=None):
        check_texts(prompts, negative)
        encoder = self.parts.text_encoder
        if encoder is None:
            raise LanternError(
                "this checkpoint has no text encoder: convert it with --t5, "
                "or give features to Pipeline.generate_from(conditioning)"
            )
        tokenizer, length = self.parts.tokenizer, self.config.caption_length
        tokens = caption_tokens(tokenizer, prompts, length, encoder.vocab_size)
        # Usually one text for all prompts.
        place = {text: row for row, text in enumerate(dict.fromkeys(negative or ()))}
        with errors.of_negatives():
            against = caption_tokens(tokenizer, list(place), length, encoder.vocab_size)
        rows = [place[text] for text in negative or ()]
        ignored = _ignored(partial(cut_of, tokenizer, length), prompts, negative)
        return partial(self._features, tokens, against, rows, dtype), ignored

    def encode(self, prompts, dtype=np.float32, negative=None):
        return self.prepare(prompts, dtype, negative)[0]()

    def _features(self, tokens, against, rows: list[int], dtype) -> CaptionConditioning:
        read = self._parameters(np.dtype(dtype)), self.parts.text_encoder
        made = encode_captions(*read, *tokens, dtype)
        if not rows:
            return CaptionConditioning(made, made.mask)
        other = encode_captions(*read, *against, dtype).repeated(rows)
        return CaptionConditioning(made, made.mask, negative=other, negative_mask=other.mask)

    @contextmanager
    def kept(self):
        outer, self._read = self._read, {} if self._read is None else self._read
        try:
            yield
        finally:
            self._read = outer

    def _parameters(self, dtype: np.dtype) -> PyTree:
        held = {} if self._read is None else self._read
        if dtype not in held:
            held[dtype] = self.parts.read_text_encoder(dtype)
        return held[dtype]

    def from_arrays(self, conditioning, mask=None):
        features = np.asarray(conditioning)
        return self._checked(
            features, np.ones(features.shape[:2], bool) if mask is None else np.asarray(mask)
        )

    def _checked(self, features, mask, negative=None, negative_mask=None):
        if negative is not None:
            made, against = self._checked(features, mask), self._checked(negative, negative_mask)
            return made.replace(negative=against.features, negative_mask=against.mask)
        row = self.config.caption_length, self.config.caption_dim
        if not _fits(features, *row) or features.dtype.kind not in "fV":
            raise LanternError(
                f"conditioning has shape {features.shape}, {features.dtype}: give features [n, {row[0]}, {row[1]}]"
            )
        if not np.isfinite(features.values if isinstance(features, PackedRows) else features).all():
            raise LanternError(
                "conditioning holds numbers that are not finite: give the text encoder's features"
            )
        check_padding(mask, features.shape[:-1])
        return CaptionConditioning(features, mask)


def _ignored(line: Callable[[Sequence[str]], str], prompts, negative: Negatives) -> tuple[str, ...]:
    """Returns the lines about prompts and about negative ones that are not empty, and warns with them."""
    against = line(negative or ())
    lines = tuple(filter(None, [line(prompts), against and f"negative_prompt: {against}"]))
    errors.warn_of_ignored(lines)
    return lines


def _fits(array: np.ndarray, *row: int) -> bool:
    return array.shape[1:] == row and len(array) > 0


def check_texts(prompts: Sequence[str | int], negative: Negatives = None) -> None:
    """Raises LanternError unless prompts and negative ones are texts, none of them empty."""
    _check_some(prompts)
    for prompt in prompts:
        _check_text(prompt, "a description in words")
        if not prompt.strip():
            raise LanternError("empty prompt: describe a picture in words")
    if negative is not None:
        with errors.of_negatives():
            check_texts(negative)


def _check_some(prompts: Sequence[Any]) -> None:
    if not len(prompts):
        raise LanternError("no prompts: give at least one")


def _check_text(prompt: Any, taken: str) -> None:
    if not isinstance(prompt, str):
        raise LanternError(f"prompt {errors.quoted(prompt)} is not text: this checkpoint takes {taken}")
    check_text(prompt, "prompt")


def _class(prompt: str | int, classes: int) -> int:
    """Returns the class that a number or, for ImageNet's classes, a name stands for."""
    advice = f"this checkpoint is class-conditional: give a class number from 0 to {classes - 1}"
    if isinstance(prompt, str) and not prompt.strip():
        raise LanternError(f"empty prompt: {advice}")
    is_number = isinstance(prompt, int | np.integer) and not isinstance(prompt, bool)
    # Python refuses to read numbers of many thousands of digits, none of which is a class.
    is_number |= isinstance(prompt, str) and bool(re.fullmatch(r"\s*\d{1,18}\s*", prompt))
    if is_number and 0 <= int(prompt) < classes:
        return int(prompt)
    if isinstance(prompt, str) and classes == IMAGENET_CLASSES and not re.fullmatch(r"\s*-?\d+\s*", prompt):
        return class_number(prompt)
    raise LanternError(f"prompt {errors.quoted(prompt)} is not a class: {advice}")
