"""Verification of a draft tree: which path the target accepts, and the bonus token after it.

Axes: B batch, N tree nodes (root included), I internal nodes, V vocabulary, L path length = depth + 1,
K neighbours, M children = N - 1.

Two couplings of draft and target: ``gumbel`` (here), where the target's token is the argmax of log p plus the
noise that plain decoding reads too, and ``rejection`` (module ``rejection``), the papers' accept tests.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding.acceptance import (
    Codebook,
    Rule,
    check_codebook,
    code_distance,
    is_strict,
    neighbour_mass,
    token_neighbours,
)
from lantern_jax.decoding.rejection import RESIDUALS, reject_walk
from lantern_jax.decoding.sampling import gumbel_argmax, varying_like
from lantern_jax.decoding.tree import DraftTree

COUPLINGS = ("gumbel", "rejection")
PATHS = ("longest", "exact_first")


@flax.struct.dataclass
class Verification:
    """What a round keeps of its draft tree.

    Attributes:
        path: int32 [B, L], accepted node ids, root first, padded by repeating the last one.
        count: int32 [B], accepted draft tokens, 0 to max_depth.
        bonus: int32 [B], the target's own token after the path.
        substituted: bool [B, L - 1], accepted tokens that the strict rule refuses on the same random numbers.
        distance: float32 [B, L - 1], how far in the codebook a substituted token is from the one that strict
            decoding would have put there; 0 elsewhere.
    """

    path: Int[Array, "B L"]
    count: Int[Array, " B"]
    bonus: Int[Array, " B"]
    substituted: Bool[Array, "B M"]
    distance: Float[Array, "B M"]


def verify_tree(
    tree: DraftTree,
    tokens: Int[Array, "B N"],
    log_probs: Float[Array, "B N V"],
    *,
    rule: Rule,
    codebook: Codebook | None = None,
    coupling: str = "gumbel",
    path: str = "longest",
    residual: str = "exact",
    temperature: Float[Array, ""] | float = 1.0,
    noise: Float[Array, "B L V"] | None = None,
    keys: Key[Array, " B"] | None = None,
    positions: Int[Array, " B"] | None = None,
    rounds: Int[Array, " B"] | None = None,
    draft_log_probs: Float[Array, "B I V"] | None = None,
    max_count: Int[Array, " B"] | None = None,
) -> Verification:
    """Accepts a path of the draft tree and samples the token after it.

    With ``coupling="gumbel"`` let y be the argmax of ``log_probs + noise`` at a node. Its child x is accepted
    when x = y or, under a relaxed rule, when x is the argmax once the neighbours in A(x) are out and their mass
    is added to p(x). With ``coupling="rejection"`` children are tried in rank order, accepted with probability
    m(x) / q(x), and p becomes the residual after each refusal. Under the strict rule both give tokens of
    exactly the target's distribution; gumbel gives the very tokens of plain decoding with the same noise.

    Args:
        tree: static topology.
        tokens: draft token of every node; the root's is not read.
        log_probs: the target's sampling log-probabilities after every node (``process_logits``).
        rule: acceptance rule; ``codebook`` is needed when it is relaxed, and for distances.
        path: static, gumbel only: ``longest`` accepted path, ties to the earliest in depth-first order, or
            ``exact_first``: from the root, the child y if there is one, else the first accepted, never back.
            At temperature 0 it is always ``longest``.
        residual: static, rejection only: ``exact`` or ``published`` (LlamaGen's in the LANTERN code).
        temperature: traced; at 0 both couplings are greedy (``noise`` is then taken as given: zeros or None).
        noise: gumbel only: row d is the noise of the token that a node of depth d predicts; None is zero.
        keys, positions, rounds: rejection only: sequence keys, position of the token the root predicts, and
            number of the round, which select the random numbers.
        draft_log_probs: rejection only: the drafter's log q at the nodes ``tree.internal``, whose children
            were drawn from it without replacement; None for deterministic drafts (q a point mass).
        max_count: cap on accepted tokens; the path is cut there and the bonus token is the cut node's.

    Raises:
        ValueError: an unknown name, a shape that does not fit the tree, or a missing argument.
    """
    _check_names(coupling, path, residual)
    check_codebook(rule, codebook)
    _check_shapes(tree, tokens, log_probs, noise)
    if max_count is None:
        max_count = jnp.full(tokens.shape[0], tree.max_depth, jnp.int32)
    temperature = jnp.asarray(temperature, jnp.float32)
    if coupling == "gumbel":
        return _verify_gumbel(tree, tokens, log_probs, rule, codebook, noise, path, temperature, max_count)

    _check_rejection(tree, log_probs, draft_log_probs, (keys, positions, rounds))

    def greedy():
        return _verify_gumbel(
            tree, tokens, log_probs, rule, codebook, None, "longest", temperature, max_count
        )

    def sample():
        node, bonus, substituted, distance = reject_walk(
            tree,
            tokens,
            log_probs,
            draft_log_probs,
            rule,
            codebook,
            keys,
            positions,
            rounds,
            max_count,
            residual,
        )
        return _verification(tree, node, bonus, substituted, distance)

    return lax.cond(temperature == 0, greedy, sample)


def _verify_gumbel(tree, tokens, log_probs, rule, codebook, noise, path, temperature, max_count):
    batch = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
    with jax.named_scope("target_tokens"):
        wanted = gumbel_argmax(log_probs, None if noise is None else noise[:, tree.depth])
    wanted_here = wanted[:, tree.parents[1:]]
    exact = tokens[:, 1:] == wanted_here
    accepted = exact
    if not is_strict(rule):
        with jax.named_scope("relaxed_accepts"):
            accepted = exact | _relaxed_accepts(tree, tokens, log_probs, noise, rule, codebook)

    last = _longest(tree, accepted)
    if path == "exact_first" and tree.max_depth > 0:
        last = jnp.where(temperature == 0, last, _exact_first(tree, exact, accepted))
    node_paths, depth = jnp.asarray(tree.node_paths), jnp.asarray(tree.depth)
    last = node_paths[last, jnp.minimum(depth[last], max_count)]

    taken = node_paths[last][:, 1:]
    steps = jnp.arange(1, tree.max_depth + 1, dtype=jnp.int32)
    substituted = (steps[None, :] <= depth[last][:, None]) & ~exact[batch, taken - 1]
    distance = varying_like(jnp.zeros(substituted.shape, jnp.float32), tokens)
    if codebook is not None:
        drafted = jnp.where(substituted, tokens[batch, taken], 0)
        replaced = jnp.where(substituted, wanted_here[batch, taken - 1], 0)
        distance = jnp.where(substituted, code_distance(codebook, drafted, replaced), distance)
    return _verification(tree, last, wanted[batch[:, 0], last], substituted, distance)


def _verification(tree, last, bonus, substituted, distance):
    return Verification(
        path=jnp.asarray(tree.node_paths)[last],
        count=jnp.asarray(tree.depth)[last],
        bonus=bonus,
        substituted=substituted,
        distance=distance,
    )


def _relaxed_accepts(tree, tokens, log_probs, noise, rule, codebook) -> Bool[Array, "B M"]:
    """Whether each child is the argmax once A(x) is out of the race and its mass is the child's own.

    That is so iff every code that beats the child's new score lies in A(x); both sides are counted, which costs
    one fused pass over the vocabulary and a gather of K numbers a child.
    """
    parents = tree.parents[1:]
    batch = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
    child = tokens[:, 1:]
    neighbours = token_neighbours(codebook, child, rule)
    present = jnp.maximum(neighbours, 0)
    log_p = log_probs[batch, parents[None, :], child]
    log_p_neighbours = log_probs[batch[..., None], parents[None, :, None], present]
    inside, mass = neighbour_mass(rule, jnp.exp(log_p), jnp.exp(log_p_neighbours), neighbours)

    scores, near_scores = log_probs[:, parents], log_p_neighbours
    boosted = jnp.where(mass > 0, jnp.logaddexp(log_p, jnp.log(jnp.where(mass > 0, mass, 1))), log_p)
    if noise is not None:
        depths = tree.depth[parents]
        scores = scores + noise[:, depths]
        near_scores = near_scores + noise[batch[..., None], depths[None, :, None], present]
        boosted = boosted + noise[batch, depths[None, :], child]

    def beats(score, code):
        higher = (score > boosted[..., None]) & (code != child[..., None])
        return higher | ((score == boosted[..., None]) & (code < child[..., None]))

    codes = jnp.arange(log_probs.shape[-1], dtype=jnp.int32)[None, None, :]
    rivals = jnp.sum(beats(scores, codes), axis=-1, dtype=jnp.int32)
    lenders = jnp.sum(beats(near_scores, neighbours) & inside, axis=-1, dtype=jnp.int32)
    return rivals == lenders


def _longest(tree: DraftTree, accepted: Bool[Array, "B M"]) -> Int[Array, " B"]:
    """Deepest node with accepted ancestors only; within a level id order is depth-first order."""
    if tree.max_depth == 0:
        return jnp.zeros(accepted.shape[0], jnp.int32)
    refused = ~accepted[:, None, :] & jnp.asarray(tree.ancestors[1:, 1:])[None]
    reached = jnp.where(jnp.any(refused, axis=-1), 0, jnp.asarray(tree.depth[1:])[None, :])
    best = jnp.argmax(reached, axis=-1).astype(jnp.int32)
    return jnp.where(jnp.max(reached, axis=-1) > 0, best + 1, 0)


def _exact_first(tree, exact: Bool[Array, "B M"], accepted: Bool[Array, "B M"]) -> Int[Array, " B"]:
    """Walk from the root: the exact child if there is one, else the first accepted, never back."""
    children = jnp.asarray(tree.children)
    batch = jnp.arange(accepted.shape[0], dtype=jnp.int32)[:, None]

    def step(_, node):
        below = children[node]
        preference = accepted[batch, below - 1].astype(jnp.int32) + exact[batch, below - 1].astype(jnp.int32)
        preference = jnp.where(below >= 0, preference, 0)
        chosen = jnp.take_along_axis(below, jnp.argmax(preference, axis=-1)[:, None], axis=-1)[:, 0]
        return jnp.where(jnp.max(preference, axis=-1) > 0, chosen, node)

    root = varying_like(jnp.zeros(accepted.shape[0], jnp.int32), accepted)
    return lax.fori_loop(0, tree.max_depth, step, root)


def _check_names(coupling: str, path: str, residual: str) -> None:
    for word, value, known in (
        ("coupling", coupling, COUPLINGS),
        ("path policy", path, PATHS),
        ("residual", residual, RESIDUALS),
    ):
        if value not in known:
            raise ValueError(f"unknown {word} {value!r}: choose one of {', '.join(known)}")


def _check_shapes(tree, tokens, log_probs, noise) -> None:
    if tokens.ndim != 2 or tokens.shape[1] != tree.num_nodes:
        raise ValueError(f"tokens have shape {tokens.shape}: give batch x {tree.num_nodes} tree nodes")
    if log_probs.ndim != 3 or log_probs.shape[:2] != tokens.shape:
        raise ValueError(f"log_probs have shape {log_probs.shape}: give {tokens.shape} x codes, as tokens")
    rows = (tokens.shape[0], tree.max_depth + 1, log_probs.shape[2])
    if noise is not None and noise.shape != rows:
        raise ValueError(f"noise has shape {noise.shape}: give {rows}, a row for every depth of the tree")


def _check_rejection(tree, log_probs, draft_log_probs, streams) -> None:
    if any(part is None for part in streams):
        raise ValueError("the rejection coupling needs keys, positions and rounds: give all three")
    if draft_log_probs is None:
        return
    rows = (log_probs.shape[0], len(tree.internal), log_probs.shape[2])
    if draft_log_probs.shape != rows:
        given = draft_log_probs.shape
        raise ValueError(
            f"draft_log_probs have shape {given}: give {rows}, a row for every node with children"
        )
    if tree.has_rank_gaps:
        raise ValueError(
            "the rejection coupling is wrong on trees with gaps in child ranks: use ranks 0, 1, 2, ..."
        )
