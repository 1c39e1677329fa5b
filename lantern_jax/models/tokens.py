"""Models whose prompts are ids of one vocabulary with the codes, and what their prompts are.

Token ids are *stream ids*: the codes first, in the codebook's order, then what else the vocabulary has. The head has
only the codes' columns, since other ids are never sampled.

Axes: G guidance rows, B batch, P prefix, V codes, D width.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from lantern_jax.decoding.concrete import check_prompts
from lantern_jax.decoding.protocols import TokenConditioning
from lantern_jax.decoding.record import Record
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import line_rotary, padded_causal_mask, row_positions
from lantern_jax.models.sizes import check_sizes
from lantern_jax.models.targets import StreamModel
from lantern_jax.models.transformer_config import TransformerConfig


class GuidedTokens(Record):
    """Prompts, each with the row that guidance compares it with, as stream ids, both left-padded.

    Attributes:
        tokens: int32 [B, P].
        mask: bool [B, P], False at padding.
        unconditional: int32 [B, P].
        unconditional_mask: bool [B, P].

    Example:
        >>> tokens, mask = np.array([[4, 5, 6]]), np.ones((1, 3), bool)
        >>> prompts = lantern_jax.GuidedTokens(tokens, mask, np.array([[0, 0, 6]]), np.array([[False, False, True]]))
        >>> prompts.unconditional_mask.sum(axis=1)
        array([1])
    """

    tokens: Int[Array, "B P"]
    mask: Bool[Array, "B P"]
    unconditional: Int[Array, "B P"]
    unconditional_mask: Bool[Array, "B P"]


@dataclass(frozen=True)
class GuidedTokensConfig:
    """A Llama-like model whose conditioning is ``GuidedTokens``: a square picture of codes, none of them forced.

    Attributes:
        dim, num_layers, num_heads, hidden_dim: as in ``TransformerConfig``.
        kv_heads: heads of keys and values, None for as many as of queries.
        vocab_size: rows of the embedding table: codes, then the text's ids in the published order.
        num_codes: V.
        grid: cells a side.
        norm_eps, rope_base: of the norms and the rotation.
    """

    dim: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    vocab_size: int
    num_codes: int
    grid: int
    norm_eps: float
    rope_base: float = 10000.0
    kv_heads: int | None = None

    rotary = "line"

    def __post_init__(self):
        check_sizes(self)
        if self.vocab_size <= self.num_codes:
            raise LanternError(
                f"vocab_size {self.vocab_size} has no room for text beside {self.num_codes} codes"
            )
        _ = self.transformer  # Checks heads.

    @property
    def forced_tokens(self) -> tuple[int, ...] | None:
        """The forced id of each stream position, -1 where it is free; None if all are free."""
        return None

    @property
    def num_tokens(self) -> int:
        return self.grid * self.grid if self.forced_tokens is None else len(self.forced_tokens)

    @property
    def text_size(self) -> int:
        """How many ids the text has, those of structuring tokens among them."""
        return self.vocab_size - self.num_codes

    @property
    def shared_with_drafter(self) -> dict[str, Any]:
        """Settings of a ``DrafterConfig`` that this target decides."""
        return {"dim": self.dim, "vocab_size": self.vocab_size, "rotary": self.rotary}

    @property
    def transformer(self) -> TransformerConfig:
        sizes = (self.dim, self.num_layers, self.num_heads, self.hidden_dim)
        return TransformerConfig(*sizes, self.norm_eps, kv_heads=self.kv_heads)


class TokenModel(StreamModel):
    """A ``StreamModel`` whose ``tokens`` embed all ids, prompts and codes; a family may change ``unconditional``."""

    first_code = 0

    @staticmethod
    def check(config: Any, conditioning: TokenConditioning | GuidedTokens) -> None:
        """Raises LanternError unless prompts are the model's ids, padded on the left."""
        check_prompts(config.vocab_size, conditioning)
        if isinstance(conditioning, GuidedTokens):
            check_prompts(config.vocab_size, unconditional_tokens(conditioning))

    def unconditional(self, conditioning: GuidedTokens) -> TokenConditioning:
        """Returns the rows that guidance compares prompts with."""
        return unconditional_tokens(conditioning)

    def prefill(self, conditioning: TokenConditioning | GuidedTokens, guided: bool):
        """Runs prompts, as ``transformer_target`` asks."""
        rows = [TokenConditioning(conditioning.tokens, conditioning.mask)]
        if guided:
            rows.append(self.unconditional(conditioning))
        return self.run(jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))

    def run(self, conditioning: TokenConditioning):
        """Runs whole rows: features [..., P, D], block, tokens, mask and each row's own positions [..., P]."""
        config, valid = self.config, conditioning.mask
        positions = row_positions(valid)
        rotary = line_rotary(positions, config.transformer.head_dim, config.rope_base)
        features, block = self.transformer(
            self.tokens(conditioning.tokens), rotary, padded_causal_mask(valid)
        )
        return features, block, conditioning.tokens, valid, positions

    def __call__(self, conditioning: TokenConditioning):
        """Returns final hidden states [..., P, D] and logits [..., P, V] of whole sequences."""
        features = self.run(conditioning)[0]
        return features, self.logits(features)


def unconditional_tokens(conditioning: GuidedTokens) -> TokenConditioning:
    """Returns the rows that guidance compares prompts with."""
    return TokenConditioning(conditioning.unconditional, conditioning.unconditional_mask)
