"""The interfaces of a model and of a way of guessing: two small records of pure functions.

Any JAX model can be plugged in as a ``Target`` and any source of guesses as a ``Drafting``. ``lantern_jax.models``
fills the first for LlamaGen and Chameleon, ``decoding.drafting`` the second.

The *stream* of a sequence is its tokens after the prefix, forced ones (a row end, say) included. The *root* of a round
is the last known token: it is in no cache yet, and every scored block begins with it. Where tokens are forced it ends a
short chain of *pending* tokens: the last sampled one and the forced ones after it.

Records are static: a new one means a new compilation, so make each once (``functools.cache``).

Axes: G guidance rows (1, or 2 = conditional then unconditional), B batch, P prefix, N nodes (root included), R pending
tokens at most, L = max depth + 1, S = R - 1 + L committed positions at most, I rows of log q, V vocabulary, D feature
width, T stream tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.concrete import check_ids
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.topology import AnyTopology
from lantern_jax.io.errors import LanternError

# The most records of one kind that are kept: a server's callers choose their contents, so there may be any number.
MOST_RECORDS = 256


class TokenConditioning(Record):
    """Prompts as stream ids, left-padded; each row has its own length.

    Attributes:
        tokens: int32 [B, P].
        mask: bool [B, P], False at padding.

    Example:
        >>> tokens, mask = np.array([[0, 0, 7], [4, 5, 6]]), np.array([[False, False, True], [True, True, True]])
        >>> prompts = lantern_jax.TokenConditioning(tokens, mask)
        >>> prompts.mask.sum(axis=1)  # lengths
        array([1, 3])
    """

    tokens: Int[Array, "*rows P"]
    mask: Bool[Array, "*rows P"]


class GuidedTokens(Record):
    """Prompts, each with the row that guidance compares it with, as stream ids, both left-padded.

    Attributes:
        tokens: int32 [B, P].
        mask: bool [B, P], False at padding.
        unconditional: int32 [B, P].
        unconditional_mask: bool [B, P].

    Example:
        >>> from lantern_jax.decoding.protocols import GuidedTokens
        >>> tokens, mask = np.array([[4, 5, 6]]), np.ones((1, 3), bool)
        >>> prompts = GuidedTokens(tokens, mask, np.array([[0, 0, 6]]), np.array([[False, False, True]]))
        >>> prompts.unconditional_mask.sum(axis=1)
        array([1])
    """

    tokens: Int[Array, "B P"]
    mask: Bool[Array, "B P"]
    unconditional: Int[Array, "B P"]
    unconditional_mask: Bool[Array, "B P"]


class Prefix(Record):
    """The conditioning positions as the target saw them, for the drafting.

    Attributes:
        features: [G, B, P, D], the target's hidden states after its final norm.
        tokens: int32 [G, B, P], ids of the prefix (0 where positions hold no token).
        mask: bool [G, B, P], False at padding.
        positions: int32 [G, B, P], positions as the model counts them.
        guidance: float32 [B]; None where G is 1.

    Example:
        >>> tokens = np.array([[[1, 2, 3]]])
        >>> prefix = lantern_jax.Prefix(np.zeros((1, 1, 3, 16)), tokens, tokens > 0, np.arange(3)[None, None], None)
        >>> prefix.features.shape, prefix.mask.all()
        ((1, 1, 3, 16), np.True_)
    """

    features: Float[Array, "G B P D"]
    tokens: Int[Array, "G B P"]
    mask: Bool[Array, "G B P"]
    positions: Int[Array, "G B P"]
    guidance: Float[Array, " B"] | None


@dataclass(frozen=True)
class Target:
    """The model whose distribution is wanted.

    Attributes:
        prefill: (params, conditioning, guidance, slots) -> (cache, logits [B, V], Prefix). Leaves of ``conditioning``
            are [B, ...], conditional rows only. ``guidance`` is float32 [B], or None for none; the target makes the
            unconditional rows, and so the axis G, itself. ``slots`` is the number of tokens after the prefix that the
            cache must hold, rows that ``commit`` writes beyond the committed ones included.
        score: (params, cache, tokens [B, N], depth, ancestors) -> (logits [B, N, V], features [G, B, N, D], block). A
            node at depth d stands d positions after the cache's end and sees the cache and its ``ancestors``, itself
            included. ``depth`` [N] and ``ancestors`` [N, N] are NumPy where the topology is static and no token is
            forced, else traced [B, N] and [B, N, N]. Logits come out guided, in float32, -inf where an id is not
            allowed. Decoding out of raster order (``zipar``) passes one more argument: ``visible`` bool [B, N, slots],
            which of the committed tokens, in the order of their commits, a node sees.
        commit: (cache, block, path [B, S], count [B]) -> cache with the first ``count`` nodes of the path, root or
            pending tokens included, appended to each sequence. ``count`` is 0 for a finished sequence.
        vocab_size: V.
        num_tokens: T, the length of a picture's token stream, forced tokens included.
        forced_tokens: for each stream position the id that the model's format forces there, -1 where it is free; None
            when all are free. Position 0 is never forced.
        first_code: the id of code 0 where prompts and codes share a vocabulary, the other codes following it; None
            elsewhere. Such a target takes ``TokenConditioning`` or ``GuidedTokens``: ``check_target`` tries prompts
            that end in codes, and ``drafter_from_target`` passes on both rows of prompts with their padding.
        check: conditioning -> None; raises for what the model would silently get wrong, such as ids it has no rows
            for. Called before any work; ignores traced numbers (``jax.core.Tracer``). None for no check.

    Example:
        >>> from lantern_jax.families.llamagen.model import published_config
        >>> from lantern_jax.families.registry import target_of
        >>> target = target_of(published_config("B"))
        >>> target.vocab_size, target.num_tokens, target.forced_tokens
        (16384, 256, None)
    """

    prefill: Callable[..., Any]
    score: Callable[..., Any]
    commit: Callable[..., Any]
    vocab_size: int
    num_tokens: int
    forced_tokens: tuple[int, ...] | None = None
    first_code: int | None = None
    check: Callable[[Any], None] | None = None

    def __post_init__(self):
        check_ids("vocab_size and num_tokens", np.array((self.vocab_size, self.num_tokens)), None)
        if self.forced_tokens is not None:
            object.__setattr__(self, "forced_tokens", tuple(np.asarray(self.forced_tokens).tolist()))
            if len(self.forced_tokens) != self.num_tokens or self.forced_tokens[0] >= 0:
                raise LanternError(
                    f"forced_tokens has {len(self.forced_tokens)} entries for {self.num_tokens} tokens, the first "
                    f"{self.forced_tokens[:1]}: give one each, the first -1, with what precedes it as prefix"
                )

    @property
    def forced(self) -> np.ndarray:
        """int32 [T]: the forced id, -1 where free."""
        if self.forced_tokens is None:
            return np.full(self.num_tokens, -1, np.int32)
        return np.asarray(self.forced_tokens, np.int32)


class Pending(Record):
    """The tokens that a round begins with.

    Attributes:
        tokens: int32 [B, R], right-aligned: the last one is the root; only the last ``count`` are pending, those before
            them are already committed.
        count: int32 [B], 1 to R.
        position: int32 [B], the position that the root predicts, counted from 0 along the stream.
        history: int32 [B, 3], the last known tokens: the root, the one before it, and the one before that; -1 where
            the stream has none.
    """

    tokens: Int[Array, "B R"]
    count: Int[Array, " B"]
    position: Int[Array, " B"]
    history: Int[Array, "B 3"]


class Draft(Record):
    """A drafting's proposal for a round.

    Attributes:
        tokens: int32 [B, N], node 0 the root.
        topology: a static ``DraftTree`` or a traced ``Topology``.
        log_q: float32 [B, I, V], the distributions that children were drawn from: a row for each of a static tree's
            ``internal`` nodes, in that order; N rows with a traced topology, assigned by its ``draft_rows``. None for
            point masses, and where only the shared noise is used.

    Example:
        >>> tree = lantern_jax.DraftTree.from_paths([[0], [1], [0, 0]])
        >>> draft = lantern_jax.Draft(jnp.array([[7, 3, 5, 3]], jnp.int32), tree)  # 3 or 5 after 7, and 3 after 3
        >>> draft.tokens.shape, draft.topology.num_nodes
        ((1, 4), 4)
    """

    tokens: Int[Array, "B N"]
    topology: AnyTopology
    log_q: Float[Array, "B I V"] | None = None


class Outcome(Record):
    """The results of a round.

    Attributes:
        tokens: int32 [B, S], the committed tokens: the pending ones, root last, then the accepted path.
        features: [G, B, S, D], the target's features at them.
        count: int32 [B], their number; 0 for a finished sequence. The token after the last one is the first of the
            next round's pending tokens.
        log_probs: float32 [B, N, V], the target's log-probabilities after every node.
        node_features: [G, B, N, D], the target's features at every node.
        pending: what the round began with.
        draft: what was proposed.
        verdict: the round's ``Verification``; its ``wanted`` are the target's own tokens after every node.
    """

    tokens: Int[Array, "B S"]
    features: Float[Array, "G B S D"]
    count: Int[Array, " B"]
    log_probs: Float[Array, "B N V"]
    node_features: Float[Array, "G B N D"]
    pending: Pending
    draft: Draft
    verdict: Any


@dataclass(frozen=True)
class Drafting:
    """A way of guessing several tokens ahead.

    Attributes:
        init: (params, prefix, slots, span) -> state, before the first token is known. ``slots`` as in ``Target``;
            ``span`` is S, the most positions that a round commits.
        propose: (params, state, pending, draws, sampling) -> (draft, state). ``pending`` is a ``Pending``;
            ``process_logits(logits, sampling)`` turns logits into log q; ``draws`` are the round's random numbers: the
            children of M nodes at a depth are the best codes, in order, of
            ``draws.perturb(log_q [B, M, V], depth, nodes)``, with ``nodes`` their ids in the topology.
        observe: (params, state, outcome) -> state, from the state that ``propose`` returned; drops what that added
            for nodes that were not accepted. States keep their shapes, or the loop does not compile.
        max_depth: L - 1, the depth of its topologies.

    Example:
        >>> tree = lantern_jax.DraftTree.chain(2)
        >>> def propose(params, state, pending, draws, sampling):  # the last token, again and again
        ...     return lantern_jax.Draft(jnp.repeat(pending.tokens[:, -1:], 3, axis=1), tree), state
        >>> drafting = lantern_jax.Drafting(
        ...     lambda params, prefix, slots, span: (), propose, lambda params, state, outcome: state, max_depth=2
        ... )
        >>> drafting.max_depth
        2
    """

    init: Callable[..., Any]
    propose: Callable[..., tuple[Draft, Any]]
    observe: Callable[..., Any]
    max_depth: int
