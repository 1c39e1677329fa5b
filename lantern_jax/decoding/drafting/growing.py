"""Trees grown level by level from a drafter's guesses: static ones, and those that follow its confidence.

Dynamic ones are EAGLE-2's (arXiv 2406.16858), DDD's (2409.00142), and ours on the shared noise. The best nodes of
each level are expanded, and the best of all drafted nodes are kept. A child is never worth more than its parent, so
what is kept is a tree. In EAGLE-2 a node is worth its q. When draft and target share the noise, q(x) says little about
a match, because x was picked by that noise too; what matters is how far x leads in the race log q + g, so a node is
worth softmax(beta (log q + g)).

Axes: B batch, M or F expanded nodes of a level, C children, Q drafted nodes, N kept nodes (root included), V codes.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.fields import SHARPNESS, check_count, check_fields, field, named, number, whole
from lantern_jax.decoding.protocols import Draft, Pending
from lantern_jax.decoding.sampling import top_children
from lantern_jax.decoding.topology import best_of_pool
from lantern_jax.decoding.tree import MOST_DEPTH, MOST_NODES, DraftTree, GuessTree
from lantern_jax.io.errors import LanternError

RANKINGS = ("probability", "gap")
# (drafter's state, tokens [B, M], numbers of their parents among expanded nodes [B, M]) -> (state, logits [B, M, V]).
Expand = Callable[..., tuple[Any, Float[Array, "B M V"]]]
# (logits [B, M, V], tokens of nodes, parents and grandparents [B, M, 3], depth) -> log q [B, M, V] of their children.
LogQ = Callable[..., Float[Array, "B M V"]]


class AtRoot(NamedTuple):
    """A drafter that has taken in a round's root.

    Attributes:
        state: the drafter's.
        logits: float32 [B, V], of the token after the root.
        number: int32 [B], the root's number among expanded nodes.
    """

    state: Any
    logits: Float[Array, "B V"]
    number: Int[Array, " B"]


def grow_static(
    tree: DraftTree,
    expand: Expand,
    log_q_below: LogQ,
    start: AtRoot,
    pending: Pending,
    draws: Any,
) -> Draft:
    """Fills ``tree`` below the root, the last token of ``pending``."""
    batch, expanded = pending.tokens.shape
    tokens, log_q, state = [pending.tokens[:, -1:]], [], start.state
    # The level's nodes with children: logits after them, their numbers, and their tokens with those before them.
    logits, numbers, history = start.logits[:, None], start.number[:, None], pending.history[:, None]
    for depth, internal in enumerate(tree.internal_levels):
        level = np.asarray(tree.levels[depth + 1])
        parent = np.searchsorted(np.asarray(internal), tree.parents[level])
        log_q.append(log_q_below(logits, history, depth))
        ranked = draws.perturb(log_q[-1], depth, np.asarray(internal))
        _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
        tokens.append(best[:, parent, tree.rank[level]])
        if depth + 1 < tree.max_depth:
            below = np.searchsorted(level, np.asarray(tree.internal_levels[depth + 1]))
            inner = tokens[-1][:, below]
            history = extended(history[:, parent[below]], inner)
            state, logits = expand(state, inner, numbers[:, parent[below]])
            numbers = expanded_numbers(expanded, batch, len(below))
            expanded += len(below)
    return Draft(jnp.concatenate(tokens, axis=1), tree, jnp.concatenate(log_q, axis=1))


@dataclass(frozen=True)
class DynamicTree(GuessTree):
    """The settings of a tree grown anew in each round for each sequence (EAGLE-2, arXiv 2406.16858).

    Level by level the best ``frontier`` nodes are expanded, each into ``children``; of all drafted nodes the best
    ``nodes`` are kept, ranked by the product of a node's worth and its ancestors' worths.

    Attributes:
        nodes: nodes kept, the root not counted.
        depth: levels below the root, each a pass of the drafter.
        frontier: nodes of a level that are expanded.
        children: children of a node that are drafted.
        ranking: what a node is worth: ``probability``, its q, where children are the most probable codes and an accept
            test sees them as point masses (as published); or ``gap``, for the shared noise, how clearly it leads in the
            race log q + g that the target runs too.
        sharpness: beta of the gap: a node is worth softmax(beta (log q + g)) over the codes.
        threshold: dynamic depth (DDD, arXiv 2409.00142): a sequence's tree gets no deeper once its frontier's total
            worth falls below it; 0 is never.
        checks: the depths at which that is checked; a tree always reaches the first of them.

    Raises:
        LanternError: a number that is not valid, more than 4,096 nodes, frontier or children, a depth above 64, or an
            unknown ranking.

    Example:
        >>> tree = lantern_jax.draftings.DynamicTree(nodes=25, depth=8, frontier=8, children=6)
        >>> tree.num_nodes, tree.drafts
        (26, 330)
    """

    nodes: int = whole(dataclasses.MISSING, 1, MOST_NODES)
    depth: int = whole(dataclasses.MISSING, 1, MOST_DEPTH)
    frontier: int = whole(10, 1, MOST_NODES)
    children: int = whole(10, 1, MOST_NODES)
    ranking: str = named("probability", RANKINGS)
    sharpness: float = field(2.0, SHARPNESS)
    threshold: float = number(0.0, high=1, high_open=True, note="0 is never")
    checks: tuple[int, ...] = (5, 7, 9)

    def __post_init__(self):
        check_fields(self)
        object.__setattr__(self, "checks", tuple(check_count("checks", depth) for depth in self.checks))
        if isinstance(self.nodes, int) and self.nodes > self.drafts:
            raise LanternError(
                f"nodes {self.nodes} of a dynamic tree is too many: depth {self.depth}, frontier {self.frontier} and "
                f"{self.children} children draft {self.drafts}"
            )

    @property
    def drafts(self) -> int:
        """Number of drafted nodes, of which ``nodes`` are kept."""
        return self.children * (1 + sum(self.expanded))

    @property
    def expanded(self) -> tuple[int, ...]:
        widths, there = [], self.children
        for _ in range(1, self.depth):
            widths.append(min(self.frontier, there))
            there = widths[-1] * self.children
        return tuple(widths)

    @property
    def max_depth(self) -> int:
        return self.depth

    @property
    def max_rank(self) -> int:
        return self.children - 1


class Frontier(NamedTuple):
    """The nodes of a level that are expanded.

    Attributes:
        history: int32 [B, F, 3], the tokens of the nodes, their parents and their grandparents.
        numbers: int32 [B, F], their numbers among expanded nodes.
        places: int32 [B, F], their places in the pool of drafted nodes; -1 for the root.
        worth: float32 [B, F], the log of each node's worth.
        going: bool [B], whether the sequence's tree still gets deeper.
    """

    history: Int[Array, "B F 3"]
    numbers: Int[Array, "B F"]
    places: Int[Array, "B F"]
    worth: Float[Array, "B F"]
    going: Bool[Array, " B"]


class Pool(NamedTuple):
    """Drafted nodes: tokens int32, parents' places int32 (-1 for the root), and the log of their worth float32."""

    tokens: Int[Array, "B Q"]
    parents: Int[Array, "B Q"]
    worth: Float[Array, "B Q"]


def grow_dynamic(
    tree: DynamicTree,
    expand: Expand,
    log_q_below: LogQ,
    start: AtRoot,
    pending: Pending,
    draws: Any,
) -> Draft:
    """Drafts ``tree`` below the root, as point masses; a ranking by gaps needs ``Gumbel``'s draws."""
    (batch, expanded), root = pending.tokens.shape, pending.tokens[:, -1:]
    frontier = Frontier(
        history=pending.history[:, None],
        numbers=start.number[:, None],
        places=jnp.full((batch, 1), -1, jnp.int32),
        worth=jnp.zeros((batch, 1), jnp.float32),
        going=jnp.ones(batch, bool),
    )
    state, logits, levels, drafted = start.state, start.logits[:, None], [], 0
    for depth in range(tree.depth):
        log_q = log_q_below(logits, frontier.history, depth)
        levels.append(_children(tree, frontier, log_q, draws, depth))
        if depth + 1 < tree.depth:
            above = frontier.numbers
            frontier, parent = _next(tree, frontier, levels[-1], drafted, expanded, depth)
            drafted, expanded = drafted + levels[-1].tokens.shape[1], expanded + tree.expanded[depth]
            above = jnp.take_along_axis(above, parent, axis=1)
            state, logits = expand(state, frontier.history[..., 0], above)
    pool = Pool(*(jnp.concatenate(parts, axis=1) for parts in zip(*levels, strict=True)))
    chosen, topology = best_of_pool(pool.worth, pool.parents, tree.nodes, tree.depth, tree.children)
    tokens = jnp.take_along_axis(pool.tokens, chosen, axis=1)
    return Draft(jnp.concatenate([root, tokens], axis=1), topology)


def _children(tree: DynamicTree, frontier: Frontier, log_q: Float[Array, "B F V"], draws, depth: int) -> Pool:
    """Drafts the best children of every expanded node, each node's in order of worth."""
    if tree.ranking == "probability":
        values, ids = top_children(log_q, tree.children)
    else:
        scores = jnp.float32(tree.sharpness) * draws.perturb(log_q, depth, None)
        values, ids = top_children(scores, tree.children)
        values = values - jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    worth = frontier.worth[..., None] + jnp.where(frontier.going[:, None, None], values, -jnp.inf)
    places = jnp.broadcast_to(frontier.places[..., None], ids.shape)
    return Pool(*(part.reshape(len(ids), -1) for part in (ids, places, worth)))


def _next(
    tree: DynamicTree, frontier: Frontier, level: Pool, drafted: int, expanded: int, depth: int
) -> tuple[Frontier, Int[Array, "B F"]]:
    """Returns the best nodes of a new level, and which node of ``frontier`` is the parent of each.

    ``drafted`` and ``expanded`` count the nodes of earlier levels.
    """
    worth, best = lax.top_k(level.worth, tree.expanded[depth])
    parent, going = best // tree.children, frontier.going
    if tree.threshold and depth + 1 in tree.checks:
        # Nothing may branch on data: the passes are made all the same, and the nodes go elsewhere in the tree.
        going = going & (jnp.sum(jnp.exp(worth), axis=1) >= tree.threshold)
    tokens = jnp.take_along_axis(level.tokens, best, axis=1)
    return Frontier(
        history=extended(jnp.take_along_axis(frontier.history, parent[..., None], axis=1), tokens),
        numbers=expanded_numbers(expanded, *best.shape),
        places=drafted + best,
        worth=worth,
        going=going,
    ), parent


def expanded_numbers(first: int, batch: int, count: int) -> Int[Array, "B M"]:
    """Returns the numbers of ``count`` nodes expanded together, from ``first`` on."""
    return jnp.broadcast_to((first + jnp.arange(count, dtype=jnp.int32))[None], (batch, count))


def extended(history: Int[Array, "B M 3"], tokens: Int[Array, "B M"]) -> Int[Array, "B M 3"]:
    """Returns the last tokens of nodes, given the ``history`` of their parents."""
    return jnp.concatenate([tokens[..., None], history[..., :-1]], axis=-1)
