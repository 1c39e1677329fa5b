"""Models whose prompts are ids from the codes' vocabulary, and the form of those prompts.

Token ids are *stream ids*: the codes first, in the codebook's order, then the rest of the vocabulary. The head has only
the codes' columns, since other ids are never sampled.

Axes: G guidance rows, B batch, P prefix, V codes, D width.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from lantern_jax.decoding.concrete import check_prompts
from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import padded_causal_mask, prefix_rotary, row_positions
from lantern_jax.models.sizes import check_sizes, shape_of
from lantern_jax.models.targets import StreamModel
from lantern_jax.models.transformer_config import TransformerConfig


@dataclass(frozen=True)
class GuidedTokensConfig:
    """A Llama-like model whose conditioning is ``GuidedTokens``: a square picture of codes, none of them forced.

    Attributes:
        dim, num_layers, num_heads, hidden_dim: as in ``TransformerConfig``.
        kv_heads: number of key-value heads, None for as many as query heads.
        vocab_size: rows of the embedding table: codes, then the text's ids in the published order.
        num_codes: V.
        grid: cells per side.
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
        return math.prod(shape_of(self)) if self.forced_tokens is None else len(self.forced_tokens)

    @property
    def text_size(self) -> int:
        """The number of text ids, including those of structuring tokens."""
        return self.vocab_size - self.num_codes

    @property
    def shared_with_drafter(self) -> dict[str, Any]:
        """Settings of a ``DrafterConfig`` that this target decides."""
        return {"dim": self.dim, "vocab_size": self.vocab_size, "rotary": self.rotary}

    @property
    def transformer(self) -> TransformerConfig:
        sizes = (self.dim, self.num_layers, self.num_heads, self.hidden_dim)
        return TransformerConfig(*sizes, self.norm_eps, kv_heads=self.kv_heads)


@dataclass(frozen=True)
class RowsConfig(GuidedTokensConfig):
    """A ``GuidedTokensConfig`` for pictures of any shape: a forced token follows each row of codes, others the last.

    Attributes:
        columns: codes per row, while ``grid`` is the number of rows; None for a square.
        ends: fields with the published ids of forced tokens: first the one after each row, then those after the last.
        most_codes, most_a_side: the most codes of a picture, and the most along one side.
        others: as in ``GuidedTokensConfig``.
    """

    columns: int | None = None

    ends: ClassVar[tuple[str, ...]] = ("row_end", "image_end")
    most_codes: ClassVar[int]
    most_a_side: ClassVar[int]

    def __post_init__(self):
        super().__post_init__()
        ends = {name: getattr(self, name) for name in self.ends}
        wrong = [f"{name} {number}" for name, number in ends.items() if number >= self.text_size]
        if wrong:
            raise LanternError(f"{', '.join(wrong)}: the text has {self.text_size} ids: give published ones")

    @property
    def forced_tokens(self) -> tuple[int, ...]:
        """The forced id of each stream position, -1 where it is free."""
        row, *last = (self.num_codes + getattr(self, name) for name in self.ends)
        rows, columns = shape_of(self)
        return ((-1,) * columns + (row,)) * rows + tuple(last)


def shaped(config: RowsConfig, rows: int, columns: int) -> RowsConfig:
    """Returns the config for pictures of another shape; raises LanternError for more codes than the model draws."""
    if rows * columns > config.most_codes or max(rows, columns) > config.most_a_side:
        raise LanternError(
            f"{columns} x {rows} codes of a picture are too many: this model draws up to {config.most_codes}, and "
            f"{config.most_a_side} per side"
        )
    return replace(config, grid=rows, columns=None if rows == columns else columns)


class TokenModel(StreamModel):
    """A ``StreamModel`` whose ``tokens`` embed prompts and codes alike; a family may override ``passed_on``."""

    first_code = 0

    @staticmethod
    def check(config: Any, conditioning: TokenConditioning | GuidedTokens) -> None:
        """Raises LanternError unless prompts are the model's ids, padded on the left."""
        check_prompts(config.vocab_size, conditioning)
        if isinstance(conditioning, GuidedTokens):
            check_prompts(config.vocab_size, unconditional_tokens(conditioning))

    def passed_on(self, tokens: Int[Array, "*rows P"]) -> Bool[Array, "*rows P"] | None:
        """Tells which tokens of prompts some layers leave as they are (``Transformer``); None for none."""
        return None

    def prefill(self, conditioning: TokenConditioning | GuidedTokens, guided: bool):
        """Runs prompts, as ``transformer_target`` requires."""
        rows = [TokenConditioning(conditioning.tokens, conditioning.mask)]
        if guided:
            if not isinstance(conditioning, GuidedTokens):
                raise LanternError("these prompts have no rows to compare them with: give GuidedTokens")
            rows.append(unconditional_tokens(conditioning))
        return self.run(jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))

    def run(self, conditioning: TokenConditioning):
        """Runs whole rows; returns features [..., P, D], block, tokens, mask and each row's own positions [..., P]."""
        config, valid = self.config, conditioning.mask
        positions = row_positions(valid)
        features, block = self.transformer(
            self.tokens(conditioning.tokens), prefix_rotary(config, positions), padded_causal_mask(valid),
            passed_on=self.passed_on(conditioning.tokens),
        )  # fmt: skip
        return features, block, conditioning.tokens, valid, positions

    def __call__(self, conditioning: TokenConditioning):
        """Returns final hidden states [..., P, D] and logits [..., P, V] of whole sequences."""
        features = self.run(conditioning)[0]
        return features, self.logits(features)


def unconditional_tokens(conditioning: GuidedTokens) -> TokenConditioning:
    """Returns the rows that guidance compares prompts with."""
    return TokenConditioning(conditioning.unconditional, conditioning.unconditional_mask)
