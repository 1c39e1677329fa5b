"""Echo: memory of what the target already said of the coming positions, in slightly wrong contexts. Ours.

A round scores many nodes and keeps a few; what the target said after the others is still of use. When children are
drafted below a node, the last round's nodes at its position are looked up: those with its token and its parent's token,
or, if there are none, with its token, or any. The average of their log p, p_old, is mixed with the drafter's q:

    log q' = a log q + b log p_old + a constant,

where (a, b) depends on how well they match. Children are drawn from q', so strict decoding stays strict with every
coupling. It costs no pass.

Axes: B batch, N nodes of the last round (root included), M nodes whose children are drafted, V codes.
"""

import dataclasses
import math
from dataclasses import dataclass

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.protocols import Outcome
from lantern_jax.decoding.topology import take_nodes, with_batch
from lantern_jax.devices.partition import split
from lantern_jax.io.errors import LanternError

# Least log-probability of an old node: a code that was filtered out there must not rule out a likely one.
_LEAST = -20.0


@dataclass(frozen=True)
class Echo:
    """The mixture of old and new: (a, b) for old nodes that agree in position only, in token too, in parent too.

    Raises:
        LanternError: shares that are not two finite numbers >= 0.

    Example:
        >>> config = lantern_jax.DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> drafter = lantern_jax.eagle_drafter(config)
        >>> echo = lantern_jax.Echo(token=(0.5, 0.5))
        >>> lantern_jax.eagle(drafter, lantern_jax.DraftTree.chain(4), echo).max_depth
        4
    """

    position: tuple[float, float] = (0.8, 0.25)
    token: tuple[float, float] = (0.3, 0.8)
    parent: tuple[float, float] = (0.2, 0.9)

    @classmethod
    def of(cls, mixture: tuple[float, ...] | None) -> "Echo":
        """Returns the mixture of six numbers, the parts in order; None is the library's own."""
        return cls() if mixture is None else cls(mixture[:2], mixture[2:4], mixture[4:])

    def __post_init__(self):
        for field in dataclasses.fields(self):
            shares = getattr(self, field.name)
            good = isinstance(shares, tuple | list) and len(shares) == 2
            if not (
                good and all(isinstance(share, int | float) and 0 <= share < math.inf for share in shares)
            ):
                raise LanternError(
                    f"{field.name} of echo is not valid: give two finite numbers >= 0, not {shares!r:.200}"
                )


@flax.struct.dataclass
class Memory:
    """The nodes of the last round.

    Attributes:
        tokens, before: int32 [B, N], the tokens of a node and of its parent.
        positions: int32 [B, N], the position after the node; -1 where there is no node.
        log_probs: float32 [B, N, V], the target's after the node.
    """

    tokens: Int[Array, "B N"]
    before: Int[Array, "B N"]
    positions: Int[Array, "B N"]
    log_probs: Float[Array, "B N V"]


def nothing(batch: int, nodes: int, vocab_size: int) -> Memory:
    """Makes the memory before the first round."""
    none = jnp.full((batch, nodes), -1, jnp.int32)
    return Memory(none, none, none, split(jnp.zeros((batch, nodes, vocab_size), jnp.float32), -1))


def remember(outcome: Outcome, position: Int[Array, " B"], before: Int[Array, " B"]) -> Memory:
    """Remembers a round's nodes; its root predicted ``position`` and followed the token ``before``."""
    draft = outcome.draft
    parents = draft.topology.parents
    above = take_nodes(draft.tokens, jnp.maximum(with_batch(parents, 2), 0) + jnp.zeros_like(draft.tokens))
    above = above.at[:, 0].set(before)
    depth = with_batch(draft.topology.depth, 2)
    return Memory(draft.tokens, above, position[:, None] + depth, outcome.log_probs)


def mixed(
    echo: Echo,
    memory: Memory,
    log_q: Float[Array, "B M V"],
    tokens: Int[Array, "B M"],
    before: Int[Array, "B M"],
    positions: Int[Array, " B"],
) -> Float[Array, "B M V"]:
    """Returns log q', normalized.

    Args:
        log_q: the drafter's, of the children of M nodes.
        tokens, before: those nodes' tokens and their parents'.
        positions: the position after them.
    """
    return blended(echo, log_q, *recalled(memory, tokens, before, positions))


def blended(
    echo: Echo, log_q: Float[Array, "*rows V"], old: Float[Array, "*rows V"], agreement: Int[Array, "*rows"]
) -> Float[Array, "*rows V"]:
    """Returns log q', normalized, for nodes that agree in nothing (0), position (1), token too (2), parent too (3)."""
    shares = jnp.float32([(1, 0), echo.position, echo.token, echo.parent])[agreement]
    a, b, old = shares[..., :1], shares[..., 1:], jnp.maximum(old, _LEAST)
    # Without a share q rules nothing out: 0 times -inf would be NaN.
    return jax.nn.log_softmax(jnp.where(a > 0, a * log_q, jnp.float32(0)) + b * old, axis=-1)


def recalled(
    memory: Memory, tokens: Int[Array, "B M"], before: Int[Array, "B M"], positions: Int[Array, "B *M"]
) -> tuple[Float[Array, "B M V"], Int[Array, "B M"]]:
    """Returns the mean log p of the best-matching old nodes, and how they match, as in ``blended``."""
    positions = positions.reshape(*positions.shape, *(1,) * (3 - positions.ndim))
    there = positions == memory.positions[:, None, :]
    same = there & (tokens[..., None] == memory.tokens[:, None, :])
    parent = same & (before[..., None] == memory.before[:, None, :])
    weights, agreement = jnp.zeros(there.shape, jnp.float32), jnp.zeros(tokens.shape, jnp.int32)
    for matches in (there, same, parent):
        number = jnp.sum(matches, axis=-1, dtype=jnp.int32)
        share = matches.astype(jnp.float32) / jnp.maximum(number, 1).astype(jnp.float32)[..., None]
        weights = jnp.where(number[..., None] > 0, share, weights)
        agreement = agreement + (number > 0).astype(jnp.int32)
    return jnp.einsum("bmn,bnv->bmv", weights, jnp.maximum(memory.log_probs, _LEAST)), agreement
