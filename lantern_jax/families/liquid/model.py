"""Liquid (arXiv 2412.04332) for image generation: a Gemma whose vocabulary has been extended by codes.

In the published model, embeddings are multiplied by sqrt(D) after the lookup, and the table is also the head. The
converter multiplies the table, and gives the head the codes' rows unscaled.
"""

from dataclasses import dataclass, replace

from lantern_jax.models.tokens import GuidedTokensConfig
from lantern_jax.models.transformer_config import TransformerConfig


@dataclass(frozen=True)
class LiquidConfig(GuidedTokensConfig):
    """A Liquid model; the defaults are the 7B's.

    Attributes:
        head_width: of each head; the heads together are wider than the model.
        others: as in ``GuidedTokensConfig``. A picture has 32 x 32 codes (512 px) as published.
    """

    dim: int = 3072
    num_layers: int = 28
    num_heads: int = 16
    hidden_dim: int = 24576
    vocab_size: int = 264192
    num_codes: int = 8192
    grid: int = 32
    norm_eps: float = 1e-6
    head_width: int | None = 256

    @property
    def transformer(self) -> TransformerConfig:
        width = self.head_width
        return replace(super().transformer, head_width=width, activation="gelu", norm_offset=1)
