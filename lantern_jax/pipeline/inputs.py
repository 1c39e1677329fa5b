"""The inputs of a call: prompts, and pictures to complete, or their codes, whose first rows stay.

Axes: n prompts, C codes of a picture, K tokens of the stream that are given, H W height and width.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import load_text_encoder
from lantern_jax.decoding.fields import check_count
from lantern_jax.decoding.protocols import Target
from lantern_jax.families.registry import family_of
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.pictures.images import fitted
from lantern_jax.settings.settings import Settings
from lantern_jax.text.encoders import PromptEncoder, PromptParts

# A picture or its codes: a PIL image, uint8 [H, W, 3], or whole numbers [C].
Start = Image.Image | UInt8[np.ndarray, "H W 3"] | Int[np.ndarray, " C"]


def listed(
    prompts: str | int | Sequence[str | int], negative: str | Sequence[str] | None, encoder: PromptEncoder
) -> tuple[Sequence[str | int], Sequence[str] | None]:
    """Returns prompts as a sequence, a single one as a sequence of one, and each one's negative prompt; None for None
    and blank text. Raises LanternError for a model that takes none, and for neither one nor one per prompt."""
    prompts = _sequence(prompts)
    if negative is None or (isinstance(negative, str) and not negative.strip()):
        return prompts, None
    if not encoder.takes_negative:
        raise LanternError("negative_prompt: this model takes none: leave it out")
    given = list(_sequence(negative))
    _check_each("negative_prompt", given, len(prompts), "texts")
    return prompts, given * (len(prompts) if len(given) == 1 else 1)


def _sequence(prompts: Any) -> Sequence[Any]:
    return [prompts] if isinstance(prompts, str | int | np.integer) else prompts


def _check_each(name: str, given: Sequence[Any], prompts: int, what: str) -> None:
    """Raises LanternError unless there is one, or one per prompt."""
    if len(given) not in (1, prompts):
        raise LanternError(
            f"{name} holds {len(given)} {what} for {prompts} prompts: give one, or one per prompt"
        )


def prompt_encoder(checkpoint: Checkpoint, strict_words: bool = False) -> PromptEncoder:
    """Returns the encoder of prompts for a checkpoint's target; a text encoder is read when captions are encoded."""
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    config, read = checkpoint.target_config, partial(load_text_encoder, checkpoint, sharding=device)
    parts = PromptParts(
        config,
        checkpoint.vocabulary,
        checkpoint.text_tokenizer,
        checkpoint.text_encoder_config,
        read,
        strict_words,
    )
    return family_of(config).prompts(parts)


def given(
    checkpoint: Checkpoint,
    start: Start | Sequence[Start] | None,
    keep_rows: Any,
    prompts: int,
    settings: Settings,
) -> tuple[list[np.ndarray], int] | None:
    """Returns starts, one or one per prompt, each a picture uint8 [H, W, 3] of the model's size or codes int32 [C], and
    how many rows stay, half of them for None; None without ``start``. Raises LanternError as ``generate``."""
    if start is None:
        if keep_rows is not None:
            raise LanternError("keep_rows needs a picture to go on with: give it as start")
        return None
    if not settings.drafting.verifies:
        raise LanternError(
            f"drafting {settings.method.texts['drafting']} cannot go on with a picture: choose another method"
        )
    starts = [_picture_or_codes(checkpoint, value) for value in _listed(start)]
    _check_each("start", starts, prompts, "pictures")
    rows, _ = shape_of(checkpoint.target_config)
    if keep_rows is None:
        return starts, max(1, rows // 2)
    if check_count("keep_rows", keep_rows) >= rows:
        raise errors.invalid("keep_rows", keep_rows, f"1 to {rows - 1}: a picture has {rows} rows of codes")
    return starts, int(keep_rows)


def pictures_of(checkpoint: Checkpoint, images: Start | Sequence[Start]) -> UInt8[np.ndarray, "n H W 3"]:
    """Returns pictures of the model's size; raises LanternError for anything else, or without a tokenizer."""
    pictures = [_picture_or_codes(checkpoint, value) for value in _listed(images)]
    if not pictures or any(picture.ndim != 3 for picture in pictures):
        raise LanternError("pictures are PIL images or uint8 [H, W, 3] or [n, H, W, 3]: give at least one")
    return np.stack(pictures)


def checked_codes(checkpoint: Checkpoint, codes: Any) -> Int[np.ndarray, "... C"]:
    """Returns pictures' codes; raises LanternError unless each has the right number of them, all the model's."""
    codes, config = np.asarray(codes), checkpoint.target_config
    count = math.prod(shape_of(config))
    if not np.issubdtype(codes.dtype, np.integer) or not codes.size or codes.shape[-1:] != (count,):
        raise LanternError(
            f"codes have shape {codes.shape} of {codes.dtype}: give whole numbers, {count} per picture"
        )
    if not 0 <= codes.min() <= codes.max() < config.num_codes:
        raise LanternError(
            f"codes are {codes.min()} to {codes.max()}: give those from 0 to {config.num_codes - 1}"
        )
    return codes.astype(np.int32)


def _picture_or_codes(checkpoint: Checkpoint, value: Any) -> np.ndarray:
    rows, columns = shape_of(checkpoint.target_config)
    if isinstance(value, Image.Image):
        picture = value
    else:
        value = np.asarray(value)
        if value.ndim == 1:
            return checked_codes(checkpoint, value)
        if value.ndim != 3 or value.shape[-1] != 3 or value.dtype != np.uint8 or not value.size:
            raise LanternError(
                f"a picture has shape {value.shape} of {value.dtype}: give a PIL image, uint8 [H, W, 3], "
                f"or {rows * columns} codes"
            )
        picture = Image.fromarray(value)
    if checkpoint.tokenizer_params is None:
        raise LanternError("this checkpoint has no VQ tokenizer to encode pictures with: give codes")
    pixels = checkpoint.tokenizer_config.downsampling
    return fitted(picture, columns * pixels, rows * pixels)


def first_tokens(target: Target, codes: Int[np.ndarray, "n C"], kept: int) -> Int[np.ndarray, "n K"]:
    """Returns the stream's tokens up to the last of ``kept`` codes, forced tokens between them included."""
    free = np.flatnonzero(target.forced < 0)
    stream = np.tile(target.forced, (len(codes), 1))
    stream[:, free] = codes
    return stream[:, : free[kept - 1] + 1]


def _listed(values: Any) -> list:
    """Returns one picture or row of codes, or several, as a list."""
    if isinstance(values, Image.Image):
        return [values]
    if isinstance(values, list | tuple) and not all(isinstance(value, int | np.integer) for value in values):
        return list(values)
    values = np.asarray(values)
    return [values] if values.ndim in (0, 1, 3) else list(values)
