"""Chameleon (arXiv 2405.09818) as Anole-7B and Lumina-mGPT-7B use it: text tokens in, image tokens out.

Token ids are *stream ids*: the codes first, in the codebook's order, then the row end and the image end, then the
rest of the published vocabulary (``prompts``). The head has only the codes' columns, since other ids are never sampled.

Axes: G guidance rows, B batch, P prefix, N nodes, T stream tokens, V codes, D width, E head width.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel, unconditional_tokens
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


def unconditional_row(conditioning: TokenConditioning, layout: str) -> TokenConditioning:
    """Returns the unconditional rows [B, P] of prompts [B, P]: what the layout's model was trained on without a prompt.

    "lumina" keeps the last three tokens, the image start and two size tokens, and masks the rest. "anole" keeps the
    prompt's first token, the start of the sequence, and its last, the image start.
    """
    tokens, mask = jnp.asarray(conditioning.tokens), conditioning.mask
    kept = 3 if layout == "lumina" else 2
    if layout == "anole":
        begin = jnp.take_along_axis(tokens, jnp.argmax(mask, axis=-1, keepdims=True), axis=-1)
        tokens = jnp.concatenate([tokens[..., :-2], begin, tokens[..., -1:]], axis=-1)
    last = np.arange(tokens.shape[-1]) >= tokens.shape[-1] - kept
    return TokenConditioning(tokens, jnp.broadcast_to(last[(None,) * (tokens.ndim - 1)], tokens.shape))


class Chameleon(TokenModel):
    """The model, a ``TokenModel``."""

    def unconditional(self, conditioning: TokenConditioning | GuidedTokens) -> TokenConditioning:
        """Returns the rows that guidance compares prompts with: those they come with, else ``unconditional_row``'s."""
        if isinstance(conditioning, GuidedTokens):
            return unconditional_tokens(conditioning)
        return unconditional_row(conditioning, self.config.layout)
