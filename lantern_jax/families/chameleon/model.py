"""Chameleon (arXiv 2405.09818) as Anole-7B and Lumina-mGPT-7B use it: text tokens in, image tokens out.

Token ids are *stream ids*: the codes first, in the codebook's order, then the row end and the image end, then the
rest of the published vocabulary (``prompts``). The head has only the codes' columns, since other ids are never sampled.
"""

from dataclasses import dataclass, replace

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.tokens import GuidedTokensConfig
from lantern_jax.models.transformer_config import TransformerConfig

LAYOUTS = ("anole", "lumina")


@dataclass(frozen=True)
class ChameleonConfig(GuidedTokensConfig):
    """A Chameleon target. The defaults are the 7B models'.

    Attributes:
        layout: the stream of a picture. "anole": grid * grid codes. "lumina": the row end follows each row of codes,
            the image end the last row end; both are forced.
        others: as in ``GuidedTokensConfig``. The grid is 32 (512 px) for Anole, 48 (768 px) for Lumina-mGPT-7B-768.
    """

    dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    hidden_dim: int = 11008
    vocab_size: int = 65536
    num_codes: int = 8192
    grid: int = 32
    norm_eps: float = 1e-5
    layout: str = "anole"

    def __post_init__(self):
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise errors.unknown("layout", self.layout, LAYOUTS)
        if self.vocab_size < self.num_codes + 2:
            raise LanternError(
                f"vocab_size {self.vocab_size} has no room for {self.num_codes} codes, row end and image end"
            )

    @property
    def row_end(self) -> int:
        """Stream id of the token after each row."""
        return self.num_codes

    @property
    def image_end(self) -> int:
        """Stream id of the token after a picture."""
        return self.num_codes + 1

    @property
    def forced_tokens(self) -> tuple[int, ...] | None:
        """The forced id of each stream position, -1 where it is free; None if all are free."""
        if self.layout == "anole":
            return None
        return ((-1,) * self.grid + (self.row_end,)) * self.grid + (self.image_end,)

    @property
    def transformer(self) -> TransformerConfig:
        return replace(super().transformer, qk_norm="layer")
