"""From prompts to what a target is conditioned on: class numbers, words, captions through T5, or Chameleon's tokens.

Conditioning is kept on the host with both guidance rows, leaves [2, n, ...]: row 0 conditional, row 1 unconditional.

Axes: n prompts, C label slots, P prefix length, F caption feature width.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from lantern_jax.checkpoints.store import Checkpoint, load_text_encoder
from lantern_jax.data.imagenet import class_number
from lantern_jax.models.chameleon import ChameleonConfig, TokenConditioning
from lantern_jax.models.llamagen import (
    IMAGENET_CLASSES,
    CaptionConditioning,
    caption_conditioning,
    label_conditioning,
)
from lantern_jax.text.chameleon import ChameleonVocabulary, prompt_rows
from lantern_jax.text.encoded import EncodedPrompts
from lantern_jax.text.t5 import caption_tokens, encode_captions
from lantern_jax.text.tokenizers import TextTokenizer, load_tokenizer

# Labels [2, n, C], or the record of a caption or token model with leaves [2, n, ...].
Conditioning = Int[np.ndarray, "G n C"] | CaptionConditioning | TokenConditioning

# What encoded prompts of a kind hold; those of kind "labels" hold these alone.
_FIELDS = {"captions": CaptionConditioning, "tokens": TokenConditioning}


class PromptEncoder:
    """Encodes prompts for one checkpoint. The text tokenizer stays in memory, the text encoder does not.

    Args:
        checkpoint: whose target the conditioning is for.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.config = checkpoint.target_config

    @property
    def kind(self) -> str:
        """What the target takes: "labels", "captions" or "tokens"."""
        if isinstance(self.config, ChameleonConfig):
            return "tokens"
        return "labels" if self.config.num_labels else "captions"

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The text tokenizer of the checkpoint.

        Raises:
            ValueError: it has none, or the file is damaged.
        """
        return load_tokenizer(self._text_tokenizer)

    @cached_property
    def vocabulary(self) -> ChameleonVocabulary:
        """Published ids and stream ids of a Chameleon checkpoint; raises as ``tokenizer``."""
        return ChameleonVocabulary.from_file(self._text_tokenizer, self.config.vocab_size)

    @property
    def _text_tokenizer(self) -> Path:
        if self.checkpoint.text_tokenizer is None:
            raise ValueError(
                "this checkpoint has no text tokenizer: convert it with one, or give encoded prompts"
            )
        return self.checkpoint.text_tokenizer

    def check(self, prompts: Sequence[str | int]) -> None:
        """Raises what ``encode`` would raise of the prompts; loads no text encoder."""
        if self.kind != "captions":
            self.encode(prompts)
            return
        _check_texts(prompts)
        if self.checkpoint.text_encoder_config is None:
            raise ValueError(
                "this checkpoint has no text encoder: convert it with --t5, "
                "or give features to Pipeline.generate_from(conditioning)"
            )
        caption_tokens(
            self.tokenizer,
            prompts,
            self.config.caption_length,
            self.checkpoint.text_encoder_config.vocab_size,
        )

    def encode(self, prompts: Sequence[str | int], dtype: Any = np.float32) -> Conditioning:
        """Conditioning with leaves [2, n, ...] of n prompts.

        Args:
            prompts: class numbers or ImageNet names of class-conditional models; else text.
            dtype: of the text encoder's parameters and matrix products.

        Raises:
            ValueError: no prompt, an empty one, an unknown word or class, or a checkpoint without the parts that
                encode text.
        """
        if not len(prompts):
            raise ValueError("no prompts: give at least one")
        if self.kind == "tokens":
            _check_texts(prompts)
            config = self.config
            rows = prompt_rows(self.vocabulary, self.tokenizer.encode, prompts, config.layout, config.grid)
            return jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0), rows)
        if self.kind == "captions":
            self.check(prompts)
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            features, mask = encode_captions(
                load_text_encoder(self.checkpoint, dtype, device), self.checkpoint.text_encoder_config,
                self.tokenizer, prompts, self.config.caption_length, dtype,
            )  # fmt: skip
            return _host(caption_conditioning(features, mask, guided=True))
        return _host(label_conditioning(self.labels(prompts), self.null_labels, guided=True))

    def labels(self, prompts: Sequence[str | int]) -> Int[np.ndarray, "n C"]:
        """Label ids of prompts: words through the checkpoint's vocabulary, or classes where it has none."""
        vocabulary = self.checkpoint.vocabulary
        if vocabulary is None:
            return np.array([[_class(prompt, self.config.num_labels - 1)] for prompt in prompts], np.int32)
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise ValueError(
                    f"prompt {prompt!r} is not text: this checkpoint takes words, such as 'a lake at dusk'"
                )
        return vocabulary.label_ids([vocabulary.parse(prompt) for prompt in prompts])

    @property
    def null_labels(self) -> Int[np.ndarray, " C"]:
        """Label ids of the unconditional row."""
        if self.checkpoint.vocabulary is not None:
            return self.checkpoint.vocabulary.null_labels()
        return np.full(self.config.label_slots, self.config.num_labels - 1, np.int32)

    def from_arrays(
        self,
        conditioning: Int[np.ndarray, "n C"] | Float[np.ndarray, "n P F"],
        mask: Bool[np.ndarray, "n P"] | None = None,
    ) -> Conditioning:
        """Conditioning, leaves [2, n, ...], from arrays of conditional rows; ``mask`` None means no padding.

        Raises:
            ValueError: a shape, a type or ids that do not fit the checkpoint's target.
        """
        if self.kind == "tokens":
            raise ValueError("this checkpoint takes prompts: give text, or what Pipeline.encode returned")
        array = np.asarray(conditioning)
        if self.kind == "labels":
            self._check_labels(array, (None, self.config.label_slots))
            return _host(label_conditioning(array, self.null_labels, guided=True))
        mask = np.ones(array.shape[:2], bool) if mask is None else np.asarray(mask)
        self._check_features(array, mask, (None, self.config.caption_length, self.config.caption_dim))
        return _host(caption_conditioning(array, mask, guided=True))

    def to_encoded(self, prompts: Sequence[str | int], conditioning: Conditioning) -> EncodedPrompts:
        """Conditioning as ``text.encoded.save_encoded`` takes it, arrays [n, 2, ...]."""
        arrays = {"labels": conditioning} if self.kind == "labels" else vars(conditioning)
        arrays = {name: np.moveaxis(np.asarray(leaf), 1, 0) for name, leaf in arrays.items()}
        return EncodedPrompts(self.kind, tuple(map(str, prompts)), arrays)

    def from_encoded(self, encoded: EncodedPrompts) -> Conditioning:
        """Conditioning, leaves [2, n, ...], of encoded prompts.

        Raises:
            ValueError: they were encoded for another kind or size of model.
        """
        if encoded.kind != self.kind:
            raise ValueError(
                f"prompts were encoded as {encoded.kind}, this checkpoint takes {self.kind}: encode them with it"
            )
        fields = ["labels"] if self.kind == "labels" else list(_FIELDS[self.kind].__dataclass_fields__)
        if sorted(encoded.arrays) != sorted(fields):
            raise ValueError(
                f"encoded prompts hold {', '.join(encoded.arrays)}, expected {', '.join(fields)}: encode them again"
            )
        arrays, config = encoded.arrays, self.config
        if self.kind == "labels":
            self._check_labels(arrays["labels"], (None, 2, config.label_slots))
        elif self.kind == "captions":
            self._check_features(
                arrays["features"], arrays["mask"], (None, 2, config.caption_length, config.caption_dim)
            )
        else:
            _check_tokens(arrays["tokens"], arrays["mask"], config.vocab_size)
        rows = {name: np.moveaxis(array, 1, 0) for name, array in arrays.items()}
        return rows["labels"].astype(np.int32) if self.kind == "labels" else _FIELDS[self.kind](**rows)

    def _check_labels(self, array, shape) -> None:
        if not _fits(array, shape) or array.dtype.kind not in "iu":
            raise ValueError(
                f"conditioning has shape {array.shape}, {array.dtype}: give whole numbers {_shown(shape)}"
            )
        if array.min() < 0 or array.max() >= self.config.num_labels:
            raise ValueError(
                f"conditioning holds ids outside 0..{self.config.num_labels - 1}: give label ids of the model"
            )

    def _check_features(self, array, mask, shape) -> None:
        if not _fits(array, shape) or array.dtype.kind not in "fV":
            raise ValueError(
                f"conditioning has shape {array.shape}, {array.dtype}: give features {_shown(shape)}"
            )
        if not np.isfinite(array.astype(np.float32)).all():
            raise ValueError(
                "conditioning holds numbers that are not finite: give the text encoder's features"
            )
        if mask.shape != array.shape[:-1] or mask.dtype != bool:
            raise ValueError(f"mask has shape {mask.shape}, {mask.dtype}: give booleans {array.shape[:-1]}")


def _host(conditioning):
    return jax.tree.map(np.asarray, conditioning)


def _fits(array: np.ndarray, shape: tuple[int | None, ...]) -> bool:
    return array.ndim == len(shape) and len(array) > 0 and array.shape[1:] == shape[1:]


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('n' if size is None else str(size) for size in shape)}]"


def _check_texts(prompts: Sequence[str | int]) -> None:
    if not len(prompts):
        raise ValueError("no prompts: give at least one")
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(f"prompt {prompt!r} is not text: this checkpoint takes a description in words")
        if not prompt.strip():
            raise ValueError("empty prompt: describe a picture in words")


def _check_tokens(tokens, mask, vocab_size) -> None:
    if tokens.ndim != 3 or tokens.shape[1] != 2 or tokens.dtype.kind not in "iu" or not tokens.size:
        raise ValueError(f"tokens have shape {tokens.shape}, {tokens.dtype}: give whole numbers [n, 2, P]")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(
            f"tokens hold ids outside 0..{vocab_size - 1}: encode the prompts with this checkpoint"
        )
    if mask.shape != tokens.shape or mask.dtype != bool or not mask[..., -1].all():
        raise ValueError("the mask does not fit left-padded tokens: encode the prompts again")


def _class(prompt: str | int, classes: int) -> int:
    """The class that a number or, with ImageNet's classes, a name stands for."""
    advice = f"this checkpoint is class-conditional: give a class number from 0 to {classes - 1}"
    if isinstance(prompt, str) and not prompt.strip():
        raise ValueError(f"empty prompt: {advice}")
    if not isinstance(prompt, bool) and re.fullmatch(r"\s*\d+\s*", str(prompt)) and int(prompt) < classes:
        return int(prompt)
    if isinstance(prompt, str) and classes == IMAGENET_CLASSES and not re.fullmatch(r"\s*-?\d+\s*", prompt):
        return class_number(prompt)
    raise ValueError(f"prompt {prompt!r} is not a class: {advice}")
