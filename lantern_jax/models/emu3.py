"""Emu3-Gen (arXiv 2409.18869) as it draws: a Llama with grouped queries, one vocabulary of text and codes."""

from dataclasses import dataclass

import jax.numpy as jnp

from lantern_jax.decoding.protocols import Target
from lantern_jax.io.errors import LanternError
from lantern_jax.models.targets import stream_target
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel


@dataclass(frozen=True)
class Emu3Config(GuidedTokensConfig):
    """An Emu3 model; the defaults are those of the 8B.

    Attributes:
        row_end, frame_end, image_end: published ids of the tokens that follow each row of codes, the last row's end,
            and that; all are forced.
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
        return ((-1,) * self.grid + (row,)) * self.grid + tuple(ends)


def emu3_target(config: Emu3Config, dtype: jnp.dtype = jnp.float32, taps: tuple[int, ...] = ()) -> Target:
    """Returns the target record of an Emu3 model; conditioning is ``GuidedTokens`` [B, P].

    ``taps``, the same record and errors as for ``llamagen_target``.

    Example:
        >>> target = lantern_jax.emu3_target(lantern_jax.Emu3Config())
        >>> target.forced_tokens[90] - target.vocab_size  # the end of the first row, as published
        151846
    """
    return stream_target(TokenModel, config, dtype, tuple(taps))
