"""The papers' coupling: accept tests with fresh random numbers, and residuals.

The children x of a node are tried in draft order: x is accepted with probability min(1, m(x) / q(x)), and after each
refusal p becomes a residual and q loses x (Miao et al., arXiv 2305.09781, with draws without replacement; masses after
LANTERN, arXiv 2410.03355). A child's test does not depend on whether its node is reached, so all nodes are tried
together, column by column: first children, then second ones, up to the width of the widest node. There is no walk.

Axes: B batch, N nodes (root included), I rows of log q, R nodes with children, M drafts = N - 1, V vocabulary,
K neighbours.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding.acceptance import Claim, Codebook, Loan, Probabilities, Rule
from lantern_jax.decoding.fields import check_fields, named
from lantern_jax.decoding.gumbel import Greedy, Gumbel
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.sampling import (
    acceptance_uniforms,
    draft_noise,
    first_argmax,
    gumbel_argmax,
    residual_noise,
)
from lantern_jax.decoding.topology import AnyTopology, take_codes, take_nodes
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.decoding.verification import (
    Verification,
    check_draws,
    check_log_q,
    cut,
    deepest,
    first_of_siblings,
    verification,
)
from lantern_jax.io.errors import LanternError

# What is left of the target after a refusal.
RESIDUALS = ("exact", "published", "published_lumina")


class Streams(Record):
    """The draws of ``Rejection``: what a round's random numbers are drawn from.

    Attributes:
        keys: one per sequence.
        positions: int32 [B], the position that the root predicts.
        rounds: int32 [B], the round's number.
        reads_ahead: static; whether the tests read guesses beyond the place where they stop, as ``Block``'s do. Such
            guesses no longer follow the q they were drawn from, and must not be kept for the next round.
    """

    keys: Key[Array, " B"]
    positions: Int[Array, " B"]
    rounds: Int[Array, " B"]
    reads_ahead: bool = flax.struct.field(pytree_node=False, default=False)

    def perturb(self, log_q: Float[Array, "B R V"], depth: int, nodes) -> Float[Array, "B R V"]:
        """Returns what ranks the children of ``nodes``: log q plus noise of their own, whose top-K are draws from q."""
        return log_q + draft_noise(self.keys, self.positions, self.rounds, nodes, log_q.shape[-1])

    def for_tests(self, nodes: int, vocab_size: int) -> tuple[Float[Array, "B N"], Float[Array, "B V"]]:
        """Draws uniform numbers for the tests of all nodes, and Gumbel noise for the token after the last one."""
        streams = self.keys, self.positions, self.rounds
        return acceptance_uniforms(*streams, nodes), residual_noise(*streams, vocab_size)


@dataclass(frozen=True)
class Rejection:
    """A guess is accepted with probability min(1, p / q), on random numbers of its own (arXiv 2302.01318).

    Attributes:
        residual: what p becomes after a refusal: ``exact``, or what LANTERN's released code makes of it, in its variant
            for LlamaGen and Anole (``published``) or for Lumina-mGPT (``published_lumina``). That code zeroes the k + 1
            nearest codes where any of the k lends, and makes p uniform over all V ids where nothing is left. It needs
            k + 1 stored neighbours; with k stored, k are zeroed. A neighbour without probability (one that top-k
            removed) counts as a lender even where the bound is 0, so delta 0 or lam 1 is not strict there, and
            neighbours can lend to such a code, so that a removed code is accepted. ``exact`` does neither. Under the
            strict rule all three are the same.

    Raises:
        LanternError: an unknown residual.

    Example:
        >>> lantern_jax.couplings.Rejection(), lantern_jax.couplings.Rejection("published")
        (Rejection(residual='exact'), Rejection(residual='published'))
    """

    residual: str = named("exact", RESIDUALS)

    def __post_init__(self):
        check_fields(self)

    def draws(self, keys, positions, rounds, levels, vocab_size, sampling) -> Streams | Greedy:
        return Greedy() if sampling.greedy else Streams(keys, positions, rounds)

    def verify(self, draft, log_probs, draws, rule, codebook, max_count) -> Verification:
        """Implements ``Coupling.verify``; a draft without log q is a point mass on every token."""
        if isinstance(draws, Greedy):
            return Gumbel().verify(draft, log_probs, draws, rule, codebook, max_count)
        _check(draft, log_probs, draws)
        uniforms, noise = draws.for_tests(draft.topology.num_nodes, log_probs.shape[-1])
        last, p, tried = self.walk(draft, log_probs, uniforms, noise, rule, codebook, max_count)
        bonus, wanted = gumbel_argmax(jnp.log(p), noise), gumbel_argmax(log_probs, noise[:, None])
        return verification(draft, last, bonus, wanted, tried.swapped, tried.strict, codebook)

    def walk(
        self,
        draft,
        log_probs,
        uniforms: Float[Array, "B N"],
        noise: Float[Array, "B V"],
        rule,
        codebook,
        max_count,
    ) -> tuple[Int[Array, " B"], Float[Array, "B V"], "_Tried"]:
        """Returns where the tests end, the bonus token's distribution there, and all tests' results.

        Args:
            uniforms: in [0, 1), one for the test of each node.
            noise: for the tokens that distances are measured to.
        """
        topology, layout = draft.topology, _layout(draft.topology)
        tried = self._try_children(draft, layout, log_probs, uniforms, noise, rule, codebook)
        last = cut(topology, deepest(topology, first_of_siblings(topology, tried.accepted)), max_count)
        # A leaf, and a node where the path is cut, keep their whole p.
        row = take_nodes(layout.places, last)
        refused = (row >= 0) & (take_nodes(topology.depth, last) < max_count)
        p = jnp.exp(take_nodes(log_probs, last[:, None])[:, 0])
        if tried.p.shape[1]:
            left = take_nodes(tried.p, jnp.maximum(row, 0)[:, None])[:, 0]
            p = jnp.where(refused[:, None], left, p)
        return last, p, tried

    def _try_children(self, draft, layout, log_probs, uniforms, noise, rule, codebook) -> "_Tried":
        """Tests all children, each as if its earlier siblings were refused.

        The layout's nodes come with most children first. So the nodes with a child in column c are a prefix, which
        shrinks from column to column; the nodes behind it are done, and put aside.
        """
        shape = draft.tokens.shape
        p = jnp.exp(take_nodes(log_probs, layout.nodes))
        q = None if draft.log_q is None else jnp.exp(take_nodes(draft.log_q, layout.q_rows))
        tried = _Tried(jnp.zeros(shape, bool), jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32), p)
        # Which nodes hold a code that is neither masked nor filtered out; the root's entry is not read.
        allowed = take_codes(log_probs, jnp.maximum(draft.topology.parents, 0), draft.tokens) > -jnp.inf
        given, done = _Given(draft, allowed, uniforms, jnp.exp(noise)[:, None], rule, codebook), []
        for children in layout.columns:
            width = children.shape[-1]
            done.insert(0, tried.p[:, width:])
            tried, q = tried._replace(p=tried.p[:, :width]), None if q is None else q[:, :width]
            child = jnp.broadcast_to(jnp.asarray(children), (shape[0], width))
            tried, q = self._try_column(given, child, tried, q)
        p = jnp.concatenate([tried.p, *done], axis=1)
        return _Tried(tried.accepted[:, 1:], tried.swapped[:, 1:], tried.strict[:, 1:], p)

    def _try_column(self, given: "_Given", child: Int[Array, "B W"], tried: "_Tried", q):
        """Tests one child of each of W nodes, -1 for none; returns the results with p, and q, after the refusal."""
        draft, allowed, uniforms, odds, rule, codebook = given
        topology, batch = draft.topology, jnp.arange(child.shape[0], dtype=jnp.int32)[:, None]
        accepted, swapped, strict, p = tried
        there, child = child >= 0, jnp.maximum(child, 0)
        token = draft.tokens[batch, child]
        depth = take_nodes(topology.depth, child)
        trial = _put_on_trial(p, q, token, depth, topology.max_depth, rule, codebook)
        # Under the strict rule a code that is not allowed has mass 0 anyway, and the published code has no such test.
        if self.residual == "exact" and not rule.is_strict:
            trial = trial.only_where(allowed[batch, child])
        luck = uniforms[batch, child] * trial.q_x
        possible = there & (trial.q_x > 0)
        accept = possible & (luck < trial.mass)
        # A child's result is written to its own place; a missing child's falls off the end.
        place = jnp.where(there, child, topology.num_nodes)
        accepted = accepted.at[batch, place].set(accept, mode="drop")
        if not rule.is_strict:
            swapped = swapped.at[batch, place].set(accept & (luck >= trial.p_x), mode="drop")
        if not rule.is_strict and codebook is not None:
            # The token that strict decoding would have put there: a draw from the strict residual.
            drawn = _draw_from_residual(p, trial.q, odds)
            strict = strict.at[batch, place].set(drawn, mode="drop")
        refused = possible[..., None]
        p = jnp.where(refused, self._after_refusal(p, token, trial, rule, codebook), p)
        if q is not None:
            q = jnp.where(refused, _normalized(_zeroed(q, token[..., None]), jnp.float32(0)), q)
        return _Tried(accepted, swapped, strict, p), q

    def _after_refusal(self, p, token, trial: "_Trial", rule, codebook) -> Float[Array, "B R V"]:
        """Returns the residual of p after ``token`` is refused."""
        if trial.claim is not None:
            return _residual(p, trial.claim.kept, p)
        if self.residual == "exact" or rule.is_strict:
            moved = p
            if not rule.is_strict:
                batch, row = _places(token)
                moved = _zeroed(p, trial.loan.lenders).at[batch, row, token].add(trial.loan.lent)
            return _residual(moved, trial.q, moved)
        # As LANTERN's code does: where a neighbour lent, the k + 1 nearest codes lose what p, or what q, gives them.
        near = codebook.neighbours[:, : rule.k + 1][token].astype(jnp.int32)
        near = jnp.where(jnp.any(trial.loan.lenders >= 0, axis=-1, keepdims=True), near, -1)
        everything = jnp.full_like(p, 1 / p.shape[-1])
        if trial.is_point_mass:
            return _normalized(_zeroed(_zeroed(p, token[..., None]), near), everything)
        if self.residual == "published_lumina":
            return _residual(_zeroed(p, near), trial.q, everything)
        return _residual(p, _zeroed(trial.q, near), everything)


class _Given(NamedTuple):
    """What all tests read; ``odds`` is the exponential of Gumbel noise."""

    draft: Draft
    allowed: Bool[Array, "B N"]
    uniforms: Float[Array, "B N"]
    odds: Float[Array, "B 1 V"]
    rule: Rule
    codebook: Codebook | None


class _Tried(NamedTuple):
    """The tests' results for every drafted node, and the residual of every node with children once all are refused."""

    accepted: Bool[Array, "B M"]
    swapped: Bool[Array, "B M"]
    strict: Int[Array, "B M"]
    p: Float[Array, "B R V"]


class _Trial(NamedTuple):
    """One child x of every node, on trial: its p and q, the mass its luck is compared with and that mass's source, and
    the current q (a point mass if there is no log q)."""

    p_x: Float[Array, "B R"]
    q_x: Float[Array, "B R"]
    mass: Float[Array, "B R"]
    loan: Loan | None
    claim: Claim | None
    q: Float[Array, "B R V"]
    is_point_mass: bool

    def only_where(self, allowed: Bool[Array, "B R"]) -> "_Trial":
        """Refuses codes that are not allowed; they borrow nothing."""
        loan, none = self.loan, jnp.float32(0)
        if loan is not None:
            lenders = jnp.where(allowed[..., None], loan.lenders, -1)
            loan = Loan(jnp.where(allowed, loan.lent, none), lenders)
        return self._replace(mass=jnp.where(allowed, self.mass, none), loan=loan)


def _put_on_trial(p, q, token, depth, max_depth, rule, codebook) -> _Trial:
    rows, is_point_mass = np.arange(token.shape[1], dtype=np.int32), q is None
    if is_point_mass:
        q = jax.nn.one_hot(token, p.shape[-1], dtype=jnp.float32)
    at = partial(take_codes, p, rows)
    p_x, q_x = at(token), take_codes(q, rows, token)
    trial = _Trial(p_x, q_x, p_x, None, None, q, is_point_mass)
    if rule.is_strict:
        return trial
    claim = rule.claim(p, q, token, depth, max_depth, codebook)
    if claim is not None:
        return trial._replace(mass=claim.mass, claim=claim)
    loan = rule.lend(Probabilities(at, lambda: p), token, depth, codebook)
    return trial._replace(mass=p_x + loan.lent, loan=loan)


class _Layout(NamedTuple):
    """The order in which children are tried.

    Attributes:
        nodes: the nodes with children, most children first; all nodes if their children are not known.
        places: each node's place among them, -1 for leaves.
        columns: for each place among siblings, the ids of the children there, of the first nodes; -1 for none.
        q_rows: the nodes' rows of log q.
    """

    nodes: Int[np.ndarray, " R"]
    places: Any
    columns: list[Any]
    q_rows: Any


def _layout(topology: AnyTopology) -> _Layout:
    children, ids = topology.children, np.arange(topology.num_nodes, dtype=np.int32)
    if not isinstance(topology, DraftTree):
        places = jnp.where(children[..., 0] >= 0, jnp.asarray(ids)[None], -1)
        columns = [children[..., column] for column in range(children.shape[-1])]
        return _Layout(ids, places, columns, jnp.maximum(topology.draft_rows, 0))
    counts = np.sum(children >= 0, axis=1)
    nodes = ids[np.argsort(-counts, kind="stable")][: len(topology.internal)]
    places = np.full(topology.num_nodes, -1, np.int32)
    places[nodes] = ids[: len(nodes)]
    columns = [children[nodes[: np.sum(counts > column)], column] for column in range(counts.max())]
    return _Layout(nodes, places, columns, topology.draft_rows[nodes])


def _residual(p, q, otherwise) -> Float[Array, "B R V"]:
    """Returns normalize(max(p - q, 0)), or ``otherwise`` where nothing is left."""
    return _normalized(jnp.maximum(p - q, 0), otherwise)


def _draw_from_residual(p, q, odds: Float[Array, "B 1 V"]) -> Int[Array, "B R"]:
    """Returns the argmax of log residual plus Gumbel noise, without a logarithm; ``odds`` is its exponential."""
    left = jnp.maximum(p - q, 0)
    return first_argmax(jnp.where(jnp.any(left > 0, axis=-1, keepdims=True), left, p) * odds)


def _normalized(weights: Float[Array, "B R V"], otherwise) -> Float[Array, "B R V"]:
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), otherwise)


def _places(token: Int[Array, "B R"]) -> tuple[Int[Array, "B 1"], Int[Array, "1 R"]]:
    batch, width = token.shape
    return jnp.arange(batch, dtype=jnp.int32)[:, None], jnp.arange(width, dtype=jnp.int32)[None]


def _zeroed(values: Float[Array, "B R V"], ids: Int[Array, "B R K"]) -> Float[Array, "B R V"]:
    """Sets ``values`` to 0 at ``ids``; -1 stands for none."""
    batch, row = (place[..., None] for place in _places(ids[..., 0]))
    return values.at[batch, row, jnp.where(ids >= 0, ids, values.shape[-1])].set(0, mode="drop")


def _check(draft, log_probs, draws) -> None:
    check_draws(draws, Streams, "rejection", "Streams(keys, positions, rounds)")
    check_log_q(draft, log_probs)
    topology = draft.topology
    if draft.log_q is not None and isinstance(topology, DraftTree) and topology.has_rank_gaps:
        raise LanternError(
            "the rejection coupling is wrong on trees with gaps in child ranks: use ranks 0, 1, 2, ..."
        )
