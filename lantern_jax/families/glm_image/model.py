"""GLM-Image's autoregressive part: a GLM-4 that samples a small preview of the picture first, then the picture.

In the published vocabulary codes come first, so published ids are stream ids. A prompt ends with the sizes of both
grids (``prompts``). Positions have a time, a height and a width: those of text are all the token's number; a
grid's codes share a time and count rows and columns from there, and what follows begins after the grid's longer side.

Axes: n pictures, T stream tokens, R rows, C columns of codes.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.io import errors
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.tokens import GuidedTokensConfig
from lantern_jax.models.transformer_config import TransformerConfig

# Codes on the side of a square preview.
PREVIEW = 16


@dataclass(frozen=True)
class GlmImageConfig(GuidedTokensConfig):
    """GLM-Image's autoregressive part; the defaults are those of the published 9B.

    Attributes:
        columns: codes per row, while ``grid`` is the number of rows; None for a square.
        sections: pairs of a head that turn with the time, the height and the width; its other pairs are not rotated.
        others: as in ``GuidedTokensConfig``. A picture has 32 x 32 codes (1024 px) unless another size is asked for.
    """

    dim: int = 4096
    num_layers: int = 40
    num_heads: int = 32
    hidden_dim: int = 13696
    vocab_size: int = 168064
    num_codes: int = 16384
    grid: int = 32
    norm_eps: float = 1e-5
    kv_heads: int | None = 2
    columns: int | None = None
    sections: tuple[int, int, int] = (8, 12, 12)

    rotary = "sections"
    # 2048 x 2048 pixels, and what other implementations draw along one side.
    most_codes, most_a_side = 4096, 128
    # Of a code, in each direction, as the diffusion decoder draws it.
    code_pixels = 32

    def __post_init__(self):
        object.__setattr__(self, "sections", tuple(self.sections))
        super().__post_init__()
        if len(self.sections) != 3 or not 0 < 2 * sum(self.sections) <= self.transformer.head_dim:
            raise errors.invalid(
                "sections", self.sections, f"three counts of {self.transformer.head_dim // 2} pairs"
            )

    @property
    def text_size(self) -> int:
        """The number of published ids, those of the codes included."""
        return self.vocab_size

    @property
    def preview(self) -> tuple[int, int]:
        """Rows and columns of the preview: some 256 codes in the picture's shape (``GlmImageProcessor``)."""
        rows, columns = shape_of(self)
        ratio = rows / columns
        return max(1, int(math.sqrt(ratio) * PREVIEW)), max(1, int(math.sqrt(1 / ratio) * PREVIEW))

    @property
    def num_tokens(self) -> int:
        return math.prod(self.preview) + math.prod(shape_of(self))

    @cached_property
    def offsets(self) -> Int[np.ndarray, "T 3"]:
        """The time, height and width of each stream position, counted from the end of the prompt."""
        begin, parts = 0, []
        for rows, columns in (self.preview, shape_of(self)):
            cells = np.indices((rows, columns)).reshape(2, -1)
            parts.append(begin + np.stack([np.zeros_like(cells[0]), *cells], axis=-1))
            begin += max(rows, columns)
        return np.concatenate(parts).astype(np.int32)

    @property
    def shared_with_drafter(self) -> dict[str, Any]:
        """Settings of a ``DrafterConfig`` that this target decides; drafters count positions in one line."""
        return super().shared_with_drafter | {"rotary": "line"}

    @property
    def transformer(self) -> TransformerConfig:
        return replace(super().transformer, qkv_bias=True, output_norms=True)


def preview_of(config: GlmImageConfig) -> tuple[int, ...]:
    """Returns for each stream position the preview's that shows the same part of the picture, -1 for the preview's."""
    (rows, columns), (small_rows, small_columns) = shape_of(config), config.preview
    row, column = np.indices((rows, columns)).reshape(2, -1)
    cells = row * small_rows // rows * small_columns + column * small_columns // columns
    return (-1,) * math.prod(config.preview) + tuple(cells.tolist())


def product(config: GlmImageConfig, tokens: Int[np.ndarray, "n T"]) -> dict[str, Any]:
    """Returns what the diffusion decoder takes: ``prior_token_ids`` [n, 2 R * 2 C], each code of the picture four
    times.

    Published as ``_upsample_token_ids`` of diffusers' ``GlmImagePipeline``.
    """
    rows, columns = shape_of(config)
    codes = tokens[:, math.prod(config.preview) :].reshape(-1, rows, columns)
    return {"prior_token_ids": codes.repeat(2, axis=1).repeat(2, axis=2).reshape(len(codes), -1)}
