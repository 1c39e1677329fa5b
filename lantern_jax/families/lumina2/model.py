"""Lumina-mGPT 2.0 (arXiv 2507.17801) for image generation: a Chameleon trained from scratch, with Qwen's text tokens.

In the published vocabulary, codes lie between the text's ids and one id of unknown meaning.
"""

from dataclasses import dataclass, replace

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.tokens import RowsConfig
from lantern_jax.models.transformer_config import TransformerConfig

# A prompt gives the picture's size in cells 32 pixels wide; this is the number of codes per side of a cell.
CELL = 4


@dataclass(frozen=True)
class Lumina2Config(RowsConfig):
    """A Lumina-mGPT 2.0 model; the defaults are those of the 7B.

    Attributes:
        row_end, image_end: published ids of the tokens after each row of codes, and after the last row's end.
        begin: published id of the token that prompts begin with.
        first_code: published id of the first code.
        others: as in ``RowsConfig``. A picture has 96 x 96 codes (768 px) as published.
    """

    dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    hidden_dim: int = 11008
    vocab_size: int = 171385
    num_codes: int = 16384
    grid: int = 96
    norm_eps: float = 1e-5
    row_end: int = 151670
    image_end: int = 151666
    begin: int = 151643
    first_code: int = 155000

    # As many as it was trained for, in any ratio up to 4:1.
    most_codes, most_a_side = 9216, 192

    def __post_init__(self):
        super().__post_init__()
        if self.begin >= self.first_code or self.first_code + self.num_codes > self.vocab_size:
            raise LanternError(
                f"first_code {self.first_code} does not fit begin {self.begin}, {self.num_codes} codes and vocab_size "
                f"{self.vocab_size}: give published ones"
            )
        for name in ("grid", "columns"):
            if (getattr(self, name) or 0) % CELL:
                raise errors.invalid(name, getattr(self, name), f"a multiple of {CELL} codes, 32 pixels")

    @property
    def text_size(self) -> int:
        """The number of text ids: those before the codes."""
        return self.first_code

    @property
    def transformer(self) -> TransformerConfig:
        return replace(super().transformer, qk_norm="layer")
