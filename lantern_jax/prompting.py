"""From prompts, or arrays in their place, to the conditioning that a checkpoint's target takes.

Axes: n sequences, C label slots, P prefix length, F caption feature width.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from lantern_jax.checkpoints.store import Checkpoint
from lantern_jax.models.llamagen import CaptionConditioning


def prompt_labels(checkpoint: Checkpoint, prompts: Sequence[str | int]) -> Int[np.ndarray, "n C"]:
    """Label ids of prompts: words through the checkpoint's vocabulary, or class numbers where it has none.

    Raises:
        ValueError: no prompt, an unknown word, a class that does not exist, or a caption-conditional checkpoint.
    """
    if not len(prompts):
        raise ValueError("no prompts: give at least one")
    if checkpoint.target_config.caption_dim:
        raise ValueError(
            "this checkpoint is caption-conditional and text encoders are a coming feature: "
            "give their features to Pipeline.generate_from(conditioning)"
        )
    vocabulary = checkpoint.vocabulary
    if vocabulary is None:
        classes = checkpoint.target_config.num_labels - 1
        return np.array([[_class_number(prompt, classes)] for prompt in prompts], np.int32)
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(
                f"prompt {prompt!r} is not text: this checkpoint takes words, such as 'a lake at dusk'"
            )
    return vocabulary.label_ids([vocabulary.parse(prompt) for prompt in prompts])


def null_labels(checkpoint: Checkpoint) -> Int[np.ndarray, " C"]:
    """Label ids of the unconditional guidance row; empty under caption conditioning."""
    config = checkpoint.target_config
    if checkpoint.vocabulary is not None:
        return checkpoint.vocabulary.null_labels()
    return np.full(config.label_slots if config.num_labels else 0, config.num_labels - 1, np.int32)


def conditioning_of(
    checkpoint: Checkpoint,
    conditioning: Int[np.ndarray, "n C"] | Float[np.ndarray, "n P F"],
    mask: Bool[np.ndarray, "n P"] | None = None,
) -> Int[np.ndarray, "n C"] | CaptionConditioning:
    """Checked conditioning arrays, one row a sequence, without the guidance axis.

    Raises:
        ValueError: a shape, a type or ids that do not fit the checkpoint's target.
    """
    config, array = checkpoint.target_config, np.asarray(conditioning)
    if config.num_labels:
        if (
            array.ndim != 2
            or not len(array)
            or array.shape[1] != config.label_slots
            or array.dtype.kind not in "iu"
        ):
            raise ValueError(
                f"conditioning has shape {array.shape}, {array.dtype}: give whole numbers [n, {config.label_slots}]"
            )
        if array.min() < 0 or array.max() >= config.num_labels:
            raise ValueError(
                f"conditioning holds ids outside 0..{config.num_labels - 1}: give label ids of the model"
            )
        return array.astype(np.int32)
    shape = (config.caption_length, config.caption_dim)
    if array.ndim != 3 or not len(array) or array.shape[1:] != shape or array.dtype.kind not in "fV":
        raise ValueError(
            f"conditioning has shape {array.shape}, {array.dtype}: give features [n, {shape[0]}, {shape[1]}]"
        )
    if not np.isfinite(array.astype(np.float32)).all():
        raise ValueError("conditioning holds numbers that are not finite: give the text encoder's features")
    mask = np.ones(array.shape[:2], bool) if mask is None else np.asarray(mask)
    if mask.shape != array.shape[:2] or mask.dtype != bool:
        raise ValueError(f"mask has shape {mask.shape}, {mask.dtype}: give booleans {array.shape[:2]}")
    return CaptionConditioning(array, mask, np.zeros(len(array), bool))


def _class_number(prompt: str | int, classes: int) -> int:
    advice = f"this checkpoint is class-conditional: give a class number from 0 to {classes - 1}"
    if isinstance(prompt, str) and not prompt.strip():
        raise ValueError(f"empty prompt: {advice}")
    if isinstance(prompt, bool) or not re.fullmatch(r"\s*\d+\s*", str(prompt)) or int(prompt) >= classes:
        raise ValueError(f"prompt {prompt!r} is not a class: {advice}")
    return int(prompt)
