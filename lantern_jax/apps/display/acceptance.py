"""Pictures with the number of draft tokens that each round accepted drawn over them.

Axes: T tokens, H W height and width.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax.pictures.images import LINE_HEIGHT, canvas, write_texts

_TINT = 0.45
# Pixels of a token's cell in an overlay, about.
_CELL = 24
# Few accepted tokens are dark blue, many yellow: even steps of brightness, readable without red-green vision.
_RAMP = np.array([(48, 32, 96), (58, 82, 139), (33, 144, 141), (94, 201, 98), (253, 231, 37)], np.float32)


def draw_acceptance(generation: Any) -> list[UInt8[np.ndarray, "OH OW 3"]]:
    """Overlays a generation's pictures with the number of draft tokens that each round accepted.

    Raises LanternError without pictures.

    Example:
        >>> from lantern_jax.apps.display.acceptance import draw_acceptance
        >>> generation = lantern_jax.load("demo").generate("a foggy forest", num=2, seed=7)
        >>> len(draw_acceptance(generation))
        2
    """
    deepest = len(generation.statistics.accepted) - 1
    shown = zip(generation.drawn, generation.round_of_token, strict=True)
    return [draw_over(picture, rounds, deepest) for picture, rounds in shown]


def enlarge(picture: UInt8[np.ndarray, "H W 3"], scale: int) -> UInt8[np.ndarray, "sH sW 3"]:
    """Enlarges a picture ``scale`` times, smoothly."""
    height, width = picture.shape[:2]
    return np.asarray(
        Image.fromarray(picture).resize((width * scale, height * scale), Image.Resampling.BICUBIC)
    )


def columns_of(picture: UInt8[np.ndarray, "H W 3"], tokens: int) -> int:
    """Returns how many of a picture's tokens make a row, if their cells are squares."""
    height, width = picture.shape[:2]
    return max(1, round(math.sqrt(tokens * width / height)))


def accepted_by_round(rounds: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns for every token the number of draft tokens its round accepted: all its tokens but the bonus token."""
    sizes = np.bincount(rounds, minlength=1)
    # Round 0 accepted nothing: its tokens are the prefill's or given ones.
    sizes[0] = 1
    return (sizes[rounds] - 1).astype(np.int32)


def draw_over(
    picture: UInt8[np.ndarray, "H W 3"], rounds: Int[np.ndarray, " T"], max_accepted: int
) -> UInt8[np.ndarray, "OH OW 3"]:
    """Enlarges a picture and tints each token's cell by the number of draft tokens its round accepted.

    Lines separate the tokens of different rounds; a legend below shows the tints of 0 to ``max_accepted``, the tree's
    depth. ``rounds`` is ``round_of_token`` as in ``Decoded``: tokens row by row, 0 for the prefill's token.
    """
    columns = columns_of(picture, rounds.size)
    rows = rounds.size // columns
    large = enlarge(picture, max(1, round(_CELL * columns / picture.shape[1]))).astype(np.float32)
    cell_height, cell_width = large.shape[0] // rows, large.shape[1] // columns
    colours = _colours(max_accepted)
    accepted = np.clip(accepted_by_round(rounds), 0, max_accepted).reshape(rows, columns)
    tint = np.repeat(np.repeat(colours[accepted], cell_height, axis=0), cell_width, axis=1)
    mixed = (1 - _TINT) * _stretched_grey(large) + _TINT * tint
    begins = np.diff(rounds.reshape(rows, columns), axis=1, prepend=-1) != 0
    mixed[:, ::cell_width][np.repeat(begins, cell_height, axis=0)] = 0
    drawn = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return np.concatenate([drawn, _legend(drawn.shape[1], colours)])


def _stretched_grey(picture: np.ndarray) -> np.ndarray:
    """Returns the picture in grey, stretched from black to white to show through a tint, float32 [H, W, 1]."""
    grey = picture.mean(axis=-1, keepdims=True)
    low, high = np.percentile(grey, (1, 99))
    return np.clip((grey - low) / max(high - low, 1.0), 0, 1) * 255


def _colours(max_accepted: int) -> np.ndarray:
    """Samples the ramp evenly, float32 [max_accepted + 1, 3]."""
    at = np.linspace(0, len(_RAMP) - 1, max_accepted + 1)
    low = np.minimum(at.astype(int), len(_RAMP) - 2)
    part = (at - low)[:, None].astype(np.float32)
    return (1 - part) * _RAMP[low] + part * _RAMP[low + 1]


def _legend(width: int, colours: np.ndarray) -> np.ndarray:
    """Draws a strip with a swatch for every accepted count."""
    strip = canvas(LINE_HEIGHT + 6, width)
    roomy = width >= 260
    texts = [((4, 6), "accepted per round")] if roomy else []
    side, left = 12, 100 if roomy else 4
    step = max(side + 2, min(34, (width - left) // len(colours)))
    for count, colour in enumerate(colours):
        at = left + count * step
        strip[6 : 6 + side, at : at + side] = np.rint(colour).astype(np.uint8)
        texts.append(((at + side + 3, 6), str(count)))
    return write_texts(strip, texts)
