"""What decoding asks of a model: a target and a drafter as small records of pure functions.

Any JAX model can be plugged in by filling these records; ``lantern_jax.models`` fills them for LlamaGen.

Axes: G guidance rows (1, or 2 = conditional then unconditional), B batch, P prefix, N block nodes, M nodes to
expand, L path length, V vocabulary, D feature width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.struct
import numpy as np
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class Prefix:
    """What prefill leaves for the drafter: the conditioning positions as the target saw them.

    Attributes:
        features: [G, B, P, D], the target's hidden states after its final norm.
        tokens: int32 [G, B, P], ids of the prefix (0 where positions hold no token).
        mask: bool [G, B, P], False at padding.
        positions: int32 [G, B, P], positions as the model counts them.
        guidance: float32 [B].
    """

    features: Float[Array, "G B P D"]
    tokens: Int[Array, "G B P"]
    mask: Bool[Array, "G B P"]
    positions: Int[Array, "G B P"]
    guidance: Float[Array, " B"]


@dataclass(frozen=True)
class Target:
    """The model whose distribution is wanted.

    Attributes:
        prefill: (params, conditioning, guidance [B], slots) -> (cache, logits [B, V], Prefix). ``slots`` is how
            many tokens after the prefix the cache must be able to hold.
        score: (params, cache, tokens [B, N], depth [N] or [B, N], ancestors [N, N] or [B, N, N]) ->
            (logits [B, N, V], features [G, B, N, D], block). A node at depth d stands d positions after the
            cache's end. Logits come out guided, in float32, -inf where an id is not allowed.
        commit: (cache, block, path [B, L], count [B]) -> cache with the first ``count`` nodes of the path
            appended to each sequence.
        vocab_size: V.
        num_tokens: T, the length of a picture's token stream, forced tokens included.
        forced_tokens: one entry a stream position: the id the model's format forces there, -1 where it is free;
            None when all are free. Position 0 is never forced.
    """

    prefill: Callable[..., Any]
    score: Callable[..., Any]
    commit: Callable[..., Any]
    vocab_size: int
    num_tokens: int
    forced_tokens: tuple[int, ...] | None = None

    def __post_init__(self):
        if self.forced_tokens is not None:
            if len(self.forced_tokens) != self.num_tokens:
                raise ValueError(
                    f"forced_tokens has {len(self.forced_tokens)} entries for {self.num_tokens} tokens: give one each"
                )
            if self.forced_tokens[0] >= 0:
                raise ValueError(
                    "forced_tokens forces position 0: put tokens before the first choice in the prefix"
                )

    @property
    def forced(self) -> np.ndarray:
        """int32 [T]: the forced id, -1 where free."""
        if self.forced_tokens is None:
            return np.full(self.num_tokens, -1, np.int32)
        return np.asarray(self.forced_tokens, np.int32)


@dataclass(frozen=True)
class Drafter:
    """The small model that guesses ahead (EAGLE: the target's next feature from token and feature).

    Attributes:
        init: (params, Prefix, slots, span) -> state; ``span`` is L, how many positions an ``absorb`` takes at most.
        absorb: (params, state, features [G, B, L, D], tokens [B, L], count [B]) -> (state, logits [B, V]): takes
            in the target's features of newly committed positions, each with the token that followed; the logits
            are those of the position after the last of them. Starts a new, empty set of expanded nodes.
        expand: (params, state, tokens [B, M], parents [B, M]) -> (state, logits [B, M, V]): adds nodes below
            already expanded ones (0 = the root, then in order of expansion).
    """

    init: Callable[..., Any]
    absorb: Callable[..., Any]
    expand: Callable[..., Any]
