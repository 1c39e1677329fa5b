"""Prompts of LlamaGen: classes by number or name, words of a vocabulary, or captions through T5.

Axes: n prompts, P prefix length, F caption feature width.
"""

import re
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from jaxtyping import PyTree

from lantern_jax.families.llamagen.imagenet import IMAGENET_CLASSES, class_number
from lantern_jax.families.llamagen.model import CaptionConditioning, LlamaGen
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.text.encoders import (
    PromptEncoder,
    PromptParts,
    check_some,
    check_texts,
    ignored_in,
)
from lantern_jax.text.packed import PackedRows
from lantern_jax.text.t5 import caption_tokens, cut_of, encode_captions


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
            check_some(prompts)
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
        check_texts(prompts)
        return [self.parts.vocabulary.parse(prompt, self.parts.strict_words) for prompt in prompts]

    def _checked(self, labels):
        LlamaGen.check(self.config, labels)
        return labels.astype(np.int32)


class CaptionEncoder(PromptEncoder):
    """Captions through T5, whose parameters are read once per call and then dropped."""

    kind, fields = "captions", ("features", "mask")
    negative_fields, takes_negative = ("negative", "negative_mask"), True
    _read: dict[np.dtype, PyTree] | None = None

    def prepare(self, prompts, dtype=np.float32, negative=None):
        check_texts(prompts, negative)
        if self.parts.text_encoder is None:
            raise LanternError(
                "this checkpoint has no text encoder: convert it with --t5, "
                "or give encoded prompts (lantern encode)"
            )
        tokenizer, length = self.parts.tokenizer, self.config.caption_length
        tokens = caption_tokens(tokenizer, prompts, length)
        # Usually one text for all prompts.
        place = {text: row for row, text in enumerate(dict.fromkeys(negative or ()))}
        with errors.of_negatives():
            against = caption_tokens(tokenizer, list(place), length)
        rows = [place[text] for text in negative or ()]
        ignored = ignored_in(partial(cut_of, tokenizer, length), prompts, negative)
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

    def _checked(self, **arrays):
        made = CaptionConditioning(**arrays)
        LlamaGen.check(self.config, made)
        for array in (made.features, made.negative):
            values = array.values if isinstance(array, PackedRows) else array
            if values is not None and not np.isfinite(values).all():
                raise LanternError(
                    "conditioning holds numbers that are not finite: give the text encoder's features"
                )
        return made


def llamagen_encoder(parts: PromptParts) -> PromptEncoder:
    """Returns the encoder of a LlamaGen model, for labels or for captions."""
    return LabelEncoder(parts) if parts.config.num_labels else CaptionEncoder(parts)


def _class(prompt: str | int, classes: int) -> int:
    """Returns the class that a number or, for ImageNet's classes, a name means."""
    # Python refuses to read numbers of many thousands of digits, none of which is a class.
    is_number = not isinstance(prompt, bool) and bool(re.fullmatch(r"\s*\d{1,18}\s*", str(prompt)))
    if is_number and int(prompt) < classes:
        return int(prompt)
    if isinstance(prompt, str) and classes == IMAGENET_CLASSES and not re.fullmatch(r"\s*-?\d+\s*", prompt):
        return class_number(prompt)
    raise LanternError(
        f"prompt {errors.quoted(prompt)} is not a class: this checkpoint is class-conditional: give a class number "
        f"from 0 to {classes - 1}"
    )
