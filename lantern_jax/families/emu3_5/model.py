"""Emu3.5-Image for pictures from text: Emu3's stream with a Qwen3 for a Llama, and no row end after the last row."""

from dataclasses import dataclass, replace

from lantern_jax.models.sizes import shape_of
from lantern_jax.models.tokens import RowsConfig
from lantern_jax.models.transformer_config import TransformerConfig


@dataclass(frozen=True)
class Emu35Config(RowsConfig):
    """An Emu3.5 model; the defaults are those of Emu3.5-Image, 34B.

    Attributes:
        row_end, image_end: published ids of the tokens between rows of codes, and after the last row.
        head_width: of each head; the heads together are wider than the model.
        others: as in ``RowsConfig``. A picture has 64 x 64 codes (1024 px) unless another size is asked for.
    """

    dim: int = 5120
    num_layers: int = 64
    num_heads: int = 64
    hidden_dim: int = 25600
    vocab_size: int = 282926
    num_codes: int = 131072
    grid: int = 64
    norm_eps: float = 1e-6
    rope_base: float = 1_000_000.0
    kv_heads: int | None = 8
    head_width: int | None = 128
    row_end: int = 151846
    image_end: int = 151853

    # The area of 1024 x 1024 pixels, in the published ratios up to 21:9.
    most_codes, most_a_side = 4096, 192

    @property
    def forced_tokens(self) -> tuple[int, ...]:
        """The forced id of each stream position, -1 where it is free."""
        rows, columns = shape_of(self)
        row, last = (self.num_codes + getattr(self, name) for name in self.ends)
        return ((-1,) * columns + (row,)) * (rows - 1) + (-1,) * columns + (last,)

    @property
    def transformer(self) -> TransformerConfig:
        return replace(super().transformer, head_width=self.head_width, qk_norm="rms")
