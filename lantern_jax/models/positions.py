"""Positions of tokens: one- and two-dimensional rotation factors, and attention masks.

Axes: ... leading rows (G guidance x B batch, or B alone in training), N new positions, P prefix, T cells, E head width.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def grid_rotary(grid: int, head_dim: int, base: float = 10000.0) -> Float[np.ndarray, "T E/2 2"]:
    """Returns cosines and sines of LlamaGen's 2-D rotary embedding, one row per grid cell in raster order.

    The first half of the rotation pairs turns with the cell's row, the second half with its column
    (LlamaGen's ``precompute_freqs_cis_2d`` without the conditioning positions).
    """
    quarter = head_dim // 4
    frequencies = base ** (-np.arange(quarter) / quarter)
    angles = np.arange(grid)[:, None] * frequencies
    rows = np.repeat(angles, grid, axis=0)
    columns = np.tile(angles, (grid, 1))
    angles = np.concatenate([rows, columns], axis=-1)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def line_rotary(
    positions: Int[Array, "*rows N"], head_dim: int, base: float = 10000.0
) -> Float[Array, "*rows N E/2 2"]:
    """Returns cosines and sines of Llama's 1-D rotary embedding at the given positions, float32."""
    frequencies = jnp.asarray(base ** (-np.arange(0, head_dim, 2) / head_dim), jnp.float32)
    angles = jnp.einsum("...n,e->...ne", positions.astype(jnp.float32), frequencies)
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def section_rotary(
    positions: Int[Array, "*rows N 3"], head_dim: int, base: float, sections: tuple[int, int, int]
) -> Float[Array, "*rows N E/2 2"]:
    """Returns cosines and sines of a rotation by time, height and width at the given positions, float32.

    Of the E/2 pairs of a head the first ``sections[0]`` turn with the time, the next with the height, then the width
    (Qwen2-VL, arXiv 2409.12191; GLM-Image); the pairs after these are not rotated.
    """
    count = sum(sections)
    axis = np.repeat(np.arange(3), sections)
    frequencies = jnp.asarray(base ** (-np.arange(count) / count), jnp.float32)
    angles = positions.astype(jnp.float32)[..., axis]
    angles = angles * jnp.broadcast_to(frequencies, angles.shape)
    angles = jnp.pad(angles, [(0, 0)] * (angles.ndim - 1) + [(0, head_dim // 2 - count)])
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def prefix_rotary(config: Any, positions: Int[Array, "*rows P"]) -> Float[Array, "*rows P E/2 2"]:
    """Returns rotation factors of a prompt's tokens, whose times, heights and widths are all their positions."""
    head_dim = config.transformer.head_dim
    if config.rotary == "sections":
        same = jnp.broadcast_to(positions[..., None], (*positions.shape, 3))
        return section_rotary(same, head_dim, config.rope_base, config.sections)
    return line_rotary(positions, head_dim, config.rope_base)


def row_positions(valid: Bool[Array, "*rows P"]) -> Int[Array, "*rows P"]:
    """Counts each row's positions from 0 at the first token that is not padding (int32)."""
    return jnp.maximum(jnp.cumsum(valid, axis=-1, dtype=jnp.int32) - 1, 0)


def stream_rotary(
    config: Any, prefix_mask: Bool[Array, "G B P"], positions: Int[Array, "B N"]
) -> Float[Array, "G_or_1 B N E/2 2"]:
    """Returns rotation factors of stream positions (0 = the first sampled token).

    Args:
        config: of a target or drafter. If its ``rotary`` is "grid", a position is rotated by its grid cell; if it is
            "line", positions continue from the end of each row's prefix; if it is "sections", the time, height and
            width of ``config.offsets`` [T, 3] do.
    """
    head_dim, start = config.transformer.head_dim, jnp.sum(prefix_mask, axis=-1, dtype=jnp.int32)
    if config.rotary == "line":
        return line_rotary(start[..., None] + positions[None], head_dim, config.rope_base)
    if config.rotary == "sections":
        offsets = jnp.asarray(config.offsets)[jnp.clip(positions, 0, len(config.offsets) - 1)]
        return section_rotary(
            start[..., None, None] + offsets[None], head_dim, config.rope_base, config.sections
        )
    cells = jnp.asarray(grid_rotary(config.grid, head_dim, config.rope_base))
    return cells[jnp.clip(positions, 0, len(cells) - 1)][None]


def padded_causal_mask(valid: Bool[Array, "*rows P"]) -> Bool[Array, "*rows P P"]:
    """Returns the mask of causal attention over a padded prefix: row sees column.

    A padding position is seen by itself alone; if its row saw nothing, its attention would be NaN.
    """
    length, leading = valid.shape[-1], (None,) * (valid.ndim - 1)
    causal = np.tril(np.ones((length, length), bool))[leading]
    return (causal & valid[..., None, :]) | np.eye(length, dtype=bool)[leading]
