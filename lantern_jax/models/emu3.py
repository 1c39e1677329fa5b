"""Emu3-Gen (arXiv 2409.18869) as it draws: a Llama with grouped queries, one vocabulary of text and codes."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from lantern_jax.decoding.protocols import Target
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.targets import stream_target
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel

# Of the 9216 positions of its published config prompts take up to 1024. Its area is 8100; 4:3 takes 8112, 16:9 8160.
MOST_CODES, MOST_CODES_A_SIDE = 8192, 128


@dataclass(frozen=True)
class Emu3Config(GuidedTokensConfig):
    """An Emu3 model; the defaults are those of the 8B.

    Attributes:
        row_end, frame_end, image_end: published ids of the tokens that follow each row of codes, the last row's end,
            and that; all are forced.
        columns: codes a row, and ``grid`` is the number of rows; None for a square.
        others: as in ``GuidedTokensConfig``. A picture has 90 x 90 codes (720 px) as published.

    Example:
        >>> config = lantern_jax.Emu3Config()
        >>> config.num_tokens, config.text_size, config.transformer.groups
        (8192, 151854, 4)
    """

    dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    hidden_dim: int = 14336
    vocab_size: int = 184622
    num_codes: int = 32768
    grid: int = 90
    norm_eps: float = 1e-5
    rope_base: float = 1_000_000.0
    kv_heads: int | None = 8
    row_end: int = 151846
    frame_end: int = 151847
    image_end: int = 151853
    columns: int | None = None

    def __post_init__(self):
        super().__post_init__()
        ends = {"row_end": self.row_end, "frame_end": self.frame_end, "image_end": self.image_end}
        wrong = [f"{name} {number}" for name, number in ends.items() if number >= self.text_size]
        if wrong:
            raise LanternError(f"{', '.join(wrong)}: the text has {self.text_size} ids: give published ones")

    @property
    def forced_tokens(self) -> tuple[int, ...]:
        """The forced id of each stream position, -1 where it is free."""
        row, *ends = (self.num_codes + end for end in (self.row_end, self.frame_end, self.image_end))
        rows, columns = shape_of(self)
        return ((-1,) * columns + (row,)) * rows + tuple(ends)


def shaped(config: Emu3Config, rows: int, columns: int) -> Emu3Config:
    """Returns the config of pictures of another shape; LanternError for more codes than there are positions for."""
    if rows * columns > MOST_CODES or max(rows, columns) > MOST_CODES_A_SIDE:
        raise LanternError(
            f"{columns} x {rows} codes of a picture are too many: Emu3 draws up to {MOST_CODES}, and "
            f"{MOST_CODES_A_SIDE} a side"
        )
    return replace(config, grid=rows, columns=None if rows == columns else columns)


def emu3_target(config: Emu3Config, dtype: jnp.dtype = jnp.float32, taps: tuple[int, ...] = ()) -> Target:
    """Returns the target record of an Emu3 model; conditioning is ``GuidedTokens`` [B, P].

    ``taps``, the same record and errors as for ``llamagen_target``.

    Example:
        >>> target = lantern_jax.emu3_target(lantern_jax.Emu3Config())
        >>> target.forced_tokens[90] - target.vocab_size  # the end of the first row, as published
        151846
    """
    return stream_target(TokenModel, config, dtype, tuple(taps))
