"""Verification of a round's draft: which path the target accepts, and the bonus token after it.

Couplings decide which nodes are accepted; what they share is here: the records, and the way from such nodes to a path.

Axes: B batch, N nodes (root included), V vocabulary, L path length = max depth + 1, M drafts = N - 1.
"""

from types import UnionType
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding.acceptance import Codebook, Rule, as_rule, check_codebook, code_distance
from lantern_jax.decoding.choices import COUPLINGS
from lantern_jax.decoding.concrete import check_ids, check_logits
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.topology import AnyTopology, check_topology, drafted, take_nodes, with_batch
from lantern_jax.io.errors import LanternError


class Verification(Record):
    """The part of its draft that a round keeps.

    Attributes:
        path: int32 [B, L], accepted node ids, root first, padded by repeating the last one.
        count: int32 [B], accepted draft tokens, 0 to max_depth.
        bonus: int32 [B], the target's own token after the path.
        wanted: int32 [B, N], the target's own token after every node, on the round's random numbers.
        substituted: bool [B, L - 1], accepted tokens that the strict rule refuses on the same random numbers.
        distance: float32 [B, L - 1], the codebook distance of a substituted token from strict decoding's token; 0
            elsewhere.
    """

    path: Int[Array, "B L"]
    count: Int[Array, " B"]
    bonus: Int[Array, " B"]
    wanted: Int[Array, "B N"]
    substituted: Bool[Array, "B L-1"]
    distance: Float[Array, "B L-1"]


@runtime_checkable
class Coupling(Protocol):
    """The way draft and target share randomness: a frozen, hashable value, static in a compiled program.

    Example:
        >>> coupling, sampling = lantern_jax.couplings.Gumbel(), lantern_jax.SamplingParams.create()
        >>> keys, zero = jax.random.split(jax.random.key(7), 1), jnp.zeros(1, jnp.int32)
        >>> coupling.draws(keys, zero, zero, 3, 16, sampling).noise.shape  # of a tree two levels deep, 16 codes
        (1, 3, 16)
    """

    def draws(
        self,
        keys: Key[Array, " B"],
        positions: Int[Array, " B"],
        rounds: Int[Array, " B"],
        levels: int,
        vocab_size: int,
        sampling: SamplingParams,
    ) -> Any:
        """Makes the round's random numbers, which also rank the children of a node (``perturb``).

        Args:
            keys: one per sequence.
            positions: the position that each root predicts, counted from 0.
            rounds: the number of each sequence's round.
            levels: L.
        """

    def verify(
        self,
        draft: Draft,
        log_probs: Float[Array, "B N V"],
        draws: Any,
        rule: Rule,
        codebook: Codebook | None,
        max_count: Int[Array, " B"],
    ) -> Verification:
        """Does what ``verify_tree`` says, which has checked the arguments; in the loop they fit by themselves."""


def verify_tree(
    draft: Draft,
    log_probs: Float[Array, "B N V"],
    draws: Any,
    *,
    coupling: Coupling | str,
    rule: Rule | str = "strict",
    codebook: Codebook | None = None,
    max_count: Int[Array, " B"] | int | None = None,
) -> Verification:
    """Accepts a path of the draft and samples the token after it.

    Under the strict rule each coupling gives tokens of exactly the target's distribution; ``Gumbel`` gives the tokens
    of plain decoding with the same noise and log-probabilities.

    Args:
        draft: tokens [B, N] on a static or traced topology (the root's token is not read), with the log q that children
            were drawn from if the coupling needs it.
        log_probs: the target's sampling log-probabilities after every node (``process_logits``).
        draws: this round's, made by ``coupling.draws``; ``Greedy()`` at temperature 0.
        coupling: ``Gumbel(path)``, ``Rejection(residual)`` or ``Block()``, or its name.
        rule: acceptance rule or its name; a rule that reads neighbours needs ``codebook``, and so do distances.
        max_count: the most accepted tokens; the path is cut there and the bonus token is the cut node's.

    Raises:
        LanternError: an unknown rule or coupling, a shape that does not fit the topology, tokens that are not codes,
            log-probabilities that are not numbers, draws of another coupling, or a codebook that is missing or does
            not fit. Numbers are checked where they are known: not while a program is traced.

    Example:
        >>> draft = lantern_jax.Draft(jnp.array([[0, 2, 1]], jnp.int32), lantern_jax.DraftTree.chain(2))
        >>> log_probs = jnp.log(jnp.array([[[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.3, 0.3, 0.4]]]))
        >>> verify = jax.jit(lantern_jax.verify_tree, static_argnames="coupling")
        >>> verdict = verify(draft, log_probs, lantern_jax.couplings.Greedy(), coupling=lantern_jax.couplings.Gumbel())
        >>> verdict.count.tolist(), verdict.bonus.tolist()  # code 2 is accepted, and 0 wanted in place of 1
        ([1], [0])
    """
    rule, coupling = as_rule(rule), COUPLINGS.checked(coupling)
    tokens, topology = draft.tokens, draft.topology
    check_topology(topology)
    if tokens.ndim != 2 or tokens.shape[1] != topology.num_nodes:
        raise LanternError(
            f"tokens have shape {tokens.shape}: give batch x {topology.num_nodes} tree nodes, under vmap tokens[None]"
        )
    if log_probs.ndim != 3 or log_probs.shape[:2] != tokens.shape:
        raise LanternError(f"log_probs have shape {log_probs.shape}: give {tokens.shape} x codes, as tokens")
    check_ids("draft tokens", tokens, log_probs.shape[2], np.arange(tokens.shape[1]) > 0)
    check_logits("verify_tree is given log_probs", log_probs)
    check_codebook(rule, codebook, log_probs.shape[2])
    max_count = topology.max_depth if max_count is None else max_count
    check_ids("max_count", max_count, None)
    if np.shape(max_count) not in ((), tokens.shape[:1]):
        raise LanternError(
            f"max_count has shape {np.shape(max_count)}: give one number, or {tokens.shape[:1]}"
        )
    # NumPy arrays cannot be indexed by traced ids.
    draft, log_probs = jax.tree.map(jnp.asarray, draft), jnp.asarray(log_probs)
    max_count = jnp.broadcast_to(jnp.asarray(max_count, jnp.int32), tokens.shape[:1])
    return coupling.verify(draft, log_probs, draws, rule, codebook, max_count)


def first_of_siblings(topology: AnyTopology, chosen: Bool[Array, "B M"]) -> Bool[Array, "B M"]:
    """Keeps only the first of each node's chosen children."""
    parents = drafted(topology.parents)
    siblings = with_batch(parents[..., :, None] == parents[..., None, :], 3)
    earlier = np.tri(chosen.shape[-1], k=-1, dtype=bool)[None] & siblings
    return chosen & ~jnp.any(earlier & chosen[:, None, :], axis=-1)


def deepest(topology: AnyTopology, taken: Bool[Array, "B M"]) -> Int[Array, " B"]:
    """Returns the deepest taken node whose ancestors are all taken, ties to the lowest id; else the root."""
    if not topology.max_depth:
        return jnp.zeros(taken.shape[0], jnp.int32)
    ancestors = with_batch(topology.ancestors, 3)[:, 1:, 1:]
    reached = ~jnp.any(ancestors & ~taken[:, None, :], axis=-1)
    depth = jnp.where(reached, with_batch(drafted(topology.depth), 2), 0)
    best = jnp.argmax(depth, axis=-1).astype(jnp.int32)
    return jnp.where(jnp.max(depth, axis=-1) > 0, best + 1, 0)


def cut(topology: AnyTopology, node: Int[Array, " B"], max_count: Int[Array, " B"]) -> Int[Array, " B"]:
    """Returns the node's ancestor at depth ``max_count``, or the node itself if it is not that deep."""
    path = take_nodes(topology.node_paths, node)
    where = jnp.clip(max_count, 0, topology.max_depth)
    return jnp.take_along_axis(path, where[:, None], axis=1)[:, 0]


def verification(
    draft: Draft,
    last: Int[Array, " B"],
    bonus: Int[Array, " B"],
    wanted: Int[Array, "B N"],
    swapped: Bool[Array, "B M"],
    strict: Int[Array, "B M"],
    codebook: Codebook | None,
) -> Verification:
    """Makes the record of a path that ends at the node ``last``.

    Args:
        swapped: drafted nodes whose token the strict rule refuses.
        strict: the tokens that strict decoding would have put there.
        codebook: None reports no distances.
    """
    topology, batch = draft.topology, jnp.arange(last.shape[0], dtype=jnp.int32)[:, None]
    path, count = take_nodes(topology.node_paths, last), take_nodes(topology.depth, last)
    taken = jnp.maximum(path[:, 1:] - 1, 0)
    steps = jnp.arange(1, topology.max_depth + 1, dtype=jnp.int32)[None]
    substituted = (steps <= count[:, None]) & swapped[batch, taken]
    distance = jnp.zeros(substituted.shape, jnp.float32)
    if codebook is not None:
        ours, theirs = (
            jnp.where(substituted, tokens[batch, taken], 0) for tokens in (draft.tokens[:, 1:], strict)
        )
        distance = jnp.where(substituted, code_distance(codebook, ours, theirs), distance)
    return Verification(path, count, bonus, wanted, substituted, distance)


def check_draws(draws: Any, kinds: type | UnionType, coupling: str, wanted: str) -> None:
    """Raises LanternError unless ``draws`` are a coupling's own."""
    if not isinstance(draws, kinds):
        given = type(draws).__name__
        raise LanternError(f"the {coupling} coupling was given {given} as draws: give {wanted} or Greedy()")


def check_log_q(draft: Draft, log_probs: Float[Array, "B N V"]) -> None:
    """Raises LanternError unless log q has a row for every node with children; point masses have none."""
    rows = len(getattr(draft.topology, "internal", range(draft.topology.num_nodes)))
    wanted = (log_probs.shape[0], rows, log_probs.shape[2])
    if draft.log_q is not None and draft.log_q.shape != wanted:
        raise LanternError(
            f"log_q has shape {draft.log_q.shape}: give {wanted}, a row for every node with children"
        )
