"""The model families: everything the rest of the library asks of a target by the class of its config.

A config of any family has ``dim``, ``num_heads``, ``num_codes``, ``vocab_size``, ``grid``, ``num_tokens`` and
``shared_with_drafter``. Nothing else asks which family a config belongs to: a new one is a new entry here.

Axes: D width, V codes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from lantern_jax.decoding.protocols import Target
from lantern_jax.families.chameleon_weights import chameleon_shapes
from lantern_jax.families.llamagen_weights import gpt_shapes
from lantern_jax.models.chameleon import ChameleonConfig, chameleon_target
from lantern_jax.models.llamagen import LlamaGenConfig, llamagen_target
from lantern_jax.text.chameleon import ChameleonVocabulary
from lantern_jax.text.encoders import CaptionEncoder, LabelEncoder, PromptEncoder, PromptParts, TokenEncoder

TargetConfig = LlamaGenConfig | ChameleonConfig


@dataclass(frozen=True)
class Family:
    """One family of targets.

    Attributes:
        config: the class of its configs. Raises TypeError or ValueError for an unknown field or a value that is not
            valid.
        shapes: config -> the abstract parameter tree.
        target: (config, dtype, taps=()) -> the target record; the same arguments give the same record. With taps its
            features are the states entering those layers, side by side.
        head: parameters -> the kernel [D, V] that turns features into logits, which a drafter shares.
        prompts: the parts of a checkpoint that have to do with prompts -> their encoder.
        published_order: (config, text tokenizer's file or None) -> the published token id of every row of our
            embedding table, or None where they are the same. Raises ValueError where the file is needed and missing
            or damaged.
        published_residual: config -> the ``residual`` of the rejection coupling that its published code has.
    """

    config: type
    shapes: Callable[[Any], PyTree]
    target: Callable[..., Target]
    head: Callable[[PyTree], Float[Array, "D V"]]
    prompts: Callable[[PromptParts], PromptEncoder]
    published_order: Callable[[Any, Path | None], Int[np.ndarray, " vocab"] | None]
    published_residual: Callable[[Any], str]


def _llamagen_prompts(parts: PromptParts) -> PromptEncoder:
    return LabelEncoder(parts) if parts.config.num_labels else CaptionEncoder(parts)


def _chameleon_order(config: ChameleonConfig, text_tokenizer: Path | None) -> Int[np.ndarray, " vocab"]:
    return ChameleonVocabulary.from_file(
        PromptParts(config, text_tokenizer=text_tokenizer).tokenizer_file, config.vocab_size
    ).order


def _head(params: PyTree) -> Float[Array, "D V"]:
    return params["params"]["head"]["kernel"]


FAMILIES = {
    "llamagen": Family(
        config=LlamaGenConfig,
        shapes=gpt_shapes,
        target=llamagen_target,
        head=_head,
        prompts=_llamagen_prompts,
        published_order=lambda config, text_tokenizer: None,
        published_residual=lambda config: "published",
    ),
    "chameleon": Family(
        config=ChameleonConfig,
        shapes=chameleon_shapes,
        target=chameleon_target,
        head=_head,
        prompts=TokenEncoder,
        published_order=_chameleon_order,
        published_residual=lambda config: "published_lumina" if config.layout == "lumina" else "published",
    ),
}


def family_name(config: TargetConfig) -> str:
    """The name in ``FAMILIES`` of the family that a config belongs to."""
    return next(name for name, family in FAMILIES.items() if isinstance(config, family.config))


def family_of(config: TargetConfig) -> Family:
    """The family that a config belongs to."""
    return FAMILIES[family_name(config)]
