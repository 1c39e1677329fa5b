"""Speculative rejection sampling down a draft tree: the papers' own coupling.

Axes: B batch, N tree nodes, I internal nodes, V vocabulary, K neighbours, D max_depth.

Children are tried in rank order (Miao et al., arXiv 2305.09781, with draws without replacement); relaxed masses
and the published residual follow LANTERN (arXiv 2410.03355).
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding.acceptance import (
    Codebook,
    Rule,
    code_distance,
    is_strict,
    neighbour_mass,
    token_neighbours,
)
from lantern_jax.decoding.sampling import acceptance_uniforms, gumbel_argmax, residual_noise, varying_like
from lantern_jax.decoding.tree import DraftTree

RESIDUALS = ("exact", "published")


@flax.struct.dataclass
class _Walk:
    """Where each sequence stands: ``column`` is the child of ``node`` to try next, p and q are current."""

    node: Int[Array, " B"]
    column: Int[Array, " B"]
    p: Float[Array, "B V"]
    q: Float[Array, "B V"]
    substituted: Bool[Array, "B D"]
    distance: Float[Array, "B D"]


@flax.struct.dataclass
class _Trial:
    """One child x on trial: its mass m(x), p with A(x) moved onto x, and the k nearest codes (or None)."""

    p_x: Float[Array, " B"]
    q_x: Float[Array, " B"]
    mass: Float[Array, " B"]
    moved: Float[Array, "B V"]
    neighbours: Int[Array, "B K"] | None


def reject_walk(
    tree: DraftTree,
    tokens: Int[Array, "B N"],
    log_probs: Float[Array, "B N V"],
    draft_log_probs: Float[Array, "B I V"] | None,
    rule: Rule,
    codebook: Codebook | None,
    keys: Key[Array, " B"],
    positions: Int[Array, " B"],
    rounds: Int[Array, " B"],
    max_count: Int[Array, " B"],
    residual: str,
) -> tuple[Int[Array, " B"], Int[Array, " B"], Bool[Array, "B D"], Float[Array, "B D"]]:
    """Walks every sequence down the tree; arguments as in ``verify_tree``.

    Returns:
        the last accepted node, the bonus token, substituted and distance.
    """
    children, depth = jnp.asarray(tree.children), jnp.asarray(tree.depth)
    uniforms = acceptance_uniforms(keys, positions, rounds, tree.num_nodes)
    noise = residual_noise(keys, positions, rounds, log_probs.shape[-1])
    batch = jnp.arange(tokens.shape[0], dtype=jnp.int32)

    def next_child(walk):
        child = children.at[walk.node, walk.column].get(mode="fill", fill_value=-1)
        return jnp.where(depth[walk.node] < max_count, child, -1)

    def unfinished(walk):
        return jnp.any(next_child(walk) >= 0)

    def step(walk):
        child = next_child(walk)
        tried = child >= 0
        child = jnp.maximum(child, 0)
        token = tokens[batch, child]
        if draft_log_probs is None:
            walk = walk.replace(q=jax.nn.one_hot(token, walk.q.shape[-1], dtype=jnp.float32))
        trial = _put_on_trial(walk, token, rule, codebook)
        luck = uniforms[batch, child] * trial.q_x
        possible = tried & (trial.q_x > 0)
        accept = possible & (luck < trial.mass)
        substituted = accept & (luck >= trial.p_x)
        p, q = _after_refusal(walk, token, trial, residual)

        refused = (possible & ~accept)[:, None]
        new_p, new_q = _distributions(tree, log_probs, draft_log_probs, child)
        here = accept[:, None] & (
            jnp.arange(tree.max_depth, dtype=jnp.int32)[None, :] == depth[walk.node][:, None]
        )
        return _Walk(
            node=jnp.where(accept, child, walk.node),
            column=jnp.where(accept, 0, walk.column + tried.astype(jnp.int32)),
            p=jnp.where(accept[:, None], new_p, jnp.where(refused, p, walk.p)),
            q=jnp.where(accept[:, None], new_q, jnp.where(refused, q, walk.q)),
            substituted=jnp.where(here, substituted[:, None], walk.substituted),
            distance=jnp.where(
                here, _distance(walk, token, substituted, noise, codebook)[:, None], walk.distance
            ),
        )

    walk = lax.while_loop(unfinished, step, _at_root(tree, tokens, log_probs, draft_log_probs))
    return walk.node, gumbel_argmax(jnp.log(walk.p), noise), walk.substituted, walk.distance


def _at_root(tree, tokens, log_probs, draft_log_probs) -> _Walk:
    root = varying_like(jnp.zeros(tokens.shape[0], jnp.int32), tokens)
    p, q = _distributions(tree, log_probs, draft_log_probs, root)
    nothing = varying_like(jnp.zeros((tokens.shape[0], tree.max_depth), jnp.float32), tokens)
    return _Walk(node=root, column=root, p=p, q=q, substituted=nothing > 0, distance=nothing)


def _distributions(tree, log_probs, draft_log_probs, node):
    """p and q at one node of every sequence; q is not read at leaves, nor for deterministic drafts."""
    batch = jnp.arange(node.shape[0], dtype=jnp.int32)
    p = jnp.exp(log_probs[batch, node])
    if draft_log_probs is None or not tree.internal:
        return p, varying_like(jnp.zeros(p.shape, jnp.float32), p)
    row = jnp.maximum(jnp.asarray(tree.internal_index)[node], 0)
    return p, jnp.exp(draft_log_probs[batch, row])


def _put_on_trial(walk: _Walk, token, rule, codebook) -> _Trial:
    batch = jnp.arange(token.shape[0], dtype=jnp.int32)
    p_x, q_x = walk.p[batch, token], walk.q[batch, token]
    if is_strict(rule):
        return _Trial(p_x=p_x, q_x=q_x, mass=p_x, moved=walk.p, neighbours=None)
    neighbours = token_neighbours(codebook, token, rule)
    near = walk.p[batch[:, None], jnp.maximum(neighbours, 0)]
    inside, lent = neighbour_mass(rule, p_x, near, neighbours)
    moved = _zeroed(walk.p, jnp.where(inside, neighbours, -1)).at[batch, token].add(lent)
    return _Trial(p_x=p_x, q_x=q_x, mass=p_x + lent, moved=moved, neighbours=neighbours)


def _after_refusal(walk: _Walk, token, trial: _Trial, residual: str):
    """The residual of p and what is left of q once ``token`` was refused."""
    q_left = _zeroed(walk.q, token[:, None])
    total = jnp.sum(q_left, axis=-1, keepdims=True)
    q_left = jnp.where(total > 0, q_left / jnp.where(total > 0, total, 1), 0)
    if residual == "published" and trial.neighbours is not None:
        return _residual(walk.p, _zeroed(_zeroed(walk.q, token[:, None]), trial.neighbours)), q_left
    return _residual(trial.moved, walk.q), q_left


def _residual(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """normalise(max(p - q, 0)); p itself where nothing is left."""
    left = jnp.maximum(p - q, 0)
    total = jnp.sum(left, axis=-1, keepdims=True)
    return jnp.where(total > 0, left / jnp.where(total > 0, total, 1), p)


def _zeroed(values: Float[Array, "B V"], ids: Int[Array, "B K"]) -> Float[Array, "B V"]:
    """``values`` with 0 at ``ids``; -1 is no id."""
    batch = jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None]
    return values.at[batch, jnp.where(ids >= 0, ids, values.shape[-1])].set(0, mode="drop")


def _distance(walk: _Walk, token, substituted, noise, codebook) -> Float[Array, " B"]:
    """Codebook distance of substituted tokens to a draw from the strict residual, 0 elsewhere."""

    def measure():
        strict = gumbel_argmax(jnp.log(_residual(walk.p, walk.q)), noise)
        return jnp.where(substituted, code_distance(codebook, token, strict), 0)

    nothing = varying_like(jnp.zeros(token.shape, jnp.float32), walk.p)
    return nothing if codebook is None else lax.cond(jnp.any(substituted), measure, lambda: nothing)
