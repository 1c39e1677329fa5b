"""X-Omni's autoregressive part (arXiv 2507.22058): a Qwen2 between layers of its own for tokens of pictures.

Tokens of pictures, codes and marks around them, have an embedding, a norm and a head of their own. The first and the
last layers are theirs alone: text passes them unchanged, though it is seen there. Stream ids are these tokens, codes
first, then the text's ids; published ids are the text's, then these.

Axes: n pictures, T stream tokens, P prefix.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Bool, Int

from lantern_jax.io import errors
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel
from lantern_jax.models.transformer_config import TransformerConfig


@dataclass(frozen=True)
class XOmniConfig(GuidedTokensConfig):
    """X-Omni's autoregressive part; the defaults are those of the published 7B.

    Attributes:
        columns: codes per row, while ``grid`` is the number of rows; None for a square.
        picture_tokens: tokens of pictures: the codes, then marks.
        front_layers, back_layers: how many of the first and of the last layers are those tokens' alone.
        others: as in ``GuidedTokensConfig``. A picture has 72 x 72 codes (1152 px) unless another size is asked for.
    """

    dim: int = 3584
    num_layers: int = 36
    num_heads: int = 28
    hidden_dim: int = 18944
    vocab_size: int = 168512
    num_codes: int = 16384
    grid: int = 72
    norm_eps: float = 1e-6
    rope_base: float = 1_000_000.0
    kv_heads: int | None = 4
    columns: int | None = None
    picture_tokens: int = 16448
    front_layers: int = 4
    back_layers: int = 4

    # Its published sizes are 1152 x 1152 pixels, and others of that area.
    most_codes, most_a_side = 5184, 192
    # Of a code, in each direction, as the diffusion decoder draws it.
    code_pixels = 16

    def __post_init__(self):
        super().__post_init__()
        if not self.num_codes <= self.picture_tokens < self.vocab_size:
            raise errors.invalid(
                "picture_tokens", self.picture_tokens, f"{self.num_codes} codes or more, and room for text"
            )

    @property
    def text_size(self) -> int:
        """The number of published ids, those of pictures included, which prompts have too."""
        return self.vocab_size

    @property
    def transformer(self) -> TransformerConfig:
        layers = {"front_layers": self.front_layers, "back_layers": self.back_layers}
        return replace(super().transformer, qkv_bias=True, **layers)


class XOmni(TokenModel):
    """The model, a ``TokenModel``."""

    def passed_on(self, tokens: Int[Array, "*rows P"]) -> Bool[Array, "*rows P"]:
        """Implements ``TokenModel.passed_on``: text."""
        return tokens >= self.config.picture_tokens


def product(
    config: XOmniConfig, tokens: Int[np.ndarray, "n T"]
) -> dict[str, Int[np.ndarray, "n rows columns"]]:
    """Returns what the diffusion decoder takes: ``codes`` in rows and columns (``detokenize_image``)."""
    return {"codes": tokens.reshape(-1, *shape_of(config))}
