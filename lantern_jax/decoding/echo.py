"""Echo (ours): memory of what the target already said about the coming positions, in slightly wrong contexts.

A round scores many nodes and keeps a few; what the target said after the others is still useful. When guesses are made
after a node, one of the last round's nodes at the same position is recalled: the one whose last tokens agree longest
with the node's. What the target said after it, p_old, is mixed with the drafter's q:

    log q' = a log q + b log p_old + a constant,

where (a, b) depends on how long they agree: in position only, in the token too, in the parent's token, or in the
grandparent's. Guesses are drawn from q', so strict decoding stays strict with every coupling. Echo costs no pass.

Axes: G guidance rows, B batch, N nodes of the last round (root included), M nodes after which something is guessed,
H = 3 tokens compared, V codes, D feature width.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.fields import Made, Range
from lantern_jax.decoding.protocols import Draft, Outcome, Pending
from lantern_jax.decoding.topology import with_batch
from lantern_jax.devices.partition import split
from lantern_jax.io import errors

# Least log-probability after an old node: a code that was filtered out there may be likely now.
LEAST = -20.0
# H: the tokens of a node, its parent and its grandparent.
COMPARED = 3


@dataclass(frozen=True)
class Echo:
    """The mixture of old and new: (a, b) for each way in which the recalled node may agree.

    The numbers are fitted on the demo (``train.fit``): where the last tokens are the same, nearly all weight is on
    p_old.

    Attributes:
        position: for a node that agrees in position only; ``token``: in its token too; ``parent``: in its parent's too;
            ``grandparent``: in all that is compared.

    Raises:
        LanternError: shares that are not two finite numbers >= 0.

    Example:
        >>> from lantern_jax.drafters.eagle import eagle_drafter
        >>> from lantern_jax.drafters.sequence import DrafterConfig
        >>> config = DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> drafter = eagle_drafter(config)
        >>> echo = lantern_jax.draftings.Echo(token=(0.5, 0.5))
        >>> lantern_jax.draftings.eagle(drafter, lantern_jax.DraftTree.chain(4), echo).max_depth
        4
    """

    position: tuple[float, float] = (0.84, 0.17)
    token: tuple[float, float] = (0.19, 0.8)
    parent: tuple[float, float] = (0.04, 0.96)
    grandparent: tuple[float, float] = (0.02, 0.98)

    @classmethod
    def of(cls, mixture: Any) -> "Echo":
        """Returns a mixture as it is, or one of eight numbers, pair by pair, as text with slashes or in a list."""
        if isinstance(mixture, cls):
            return mixture
        try:
            numbers = [float(part) for part in (mixture.split("/") if isinstance(mixture, str) else mixture)]
            return cls(*zip(numbers[::2], numbers[1::2], strict=True))
        except (TypeError, ValueError):
            raise errors.invalid("mixture", mixture, MIXTURE.words) from None

    def __str__(self) -> str:
        """Writes the eight numbers as ``of`` reads them."""
        return "/".join(f"{share:g}" for shares in dataclasses.astuple(self) for share in shares)

    def __post_init__(self):
        for name, shares in vars(self).copy().items():
            if not isinstance(shares, tuple | list) or len(shares) != 2:
                raise errors.invalid(f"{name} of echo", shares, "two finite numbers >= 0")
            shares = tuple(Range(float).check(f"{name} of echo", share) for share in shares)
            object.__setattr__(self, name, shares)


MIXTURE = Made("eight finite numbers >= 0: a and b for position, token, parent, grandparent", Echo.of)


@flax.struct.dataclass
class Memory:
    """The nodes of the last round.

    Attributes:
        history: int32 [B, N, H], the tokens of a node, its parent and its grandparent.
        positions: int32 [B, N], the position after the node; -1 where there is no node.
        common: int32 [B, N], how many nodes of the path to it were accepted, the root and itself included.
        log_probs: float32 [B, N, V], the target's log-probabilities after the node.
        features: [G, B, N, D], the target's features at the node; None where nothing reads them.
    """

    history: Int[Array, "B N H"]
    positions: Int[Array, "B N"]
    common: Int[Array, "B N"]
    log_probs: Float[Array, "B N V"]
    features: Float[Array, "G B N D"] | None


def nothing(
    batch: int, nodes: int, vocab_size: int, features: Float[Array, "G B S D"] | None = None
) -> Memory:
    """Makes the memory before the first round; if ``features`` are given, it has room for features like them."""
    none = jnp.full((batch, nodes), -1, jnp.int32)
    if features is not None:
        features = jnp.zeros((*features.shape[:2], nodes, features.shape[-1]), features.dtype)
    log_probs = split(jnp.zeros((batch, nodes, vocab_size), jnp.float32), -1)
    return Memory(jnp.full((batch, nodes, COMPARED), -1, jnp.int32), none, none, log_probs, features)


def remember(outcome: Outcome, with_features: bool = False) -> Memory:
    """Remembers a round's nodes."""
    topology = outcome.draft.topology
    return Memory(
        history=histories(outcome.draft, outcome.pending),
        positions=outcome.pending.position[:, None] + with_batch(topology.depth, 2),
        common=accepted_above(outcome),
        log_probs=outcome.log_probs,
        features=outcome.node_features if with_features else None,
    )


def accepted_above(outcome: Outcome) -> Int[Array, "B N"]:
    """Counts the accepted nodes on the path to every node, the root and itself included."""
    topology = outcome.draft.topology
    ids = jnp.arange(topology.num_nodes, dtype=jnp.int32)[None, None]
    accepted = jnp.any(outcome.verdict.path[:, :, None] == ids, axis=1)
    return jnp.sum(with_batch(topology.ancestors, 3) & accepted[:, None], axis=-1, dtype=jnp.int32)


def histories(draft: Draft, pending: Pending) -> Int[Array, "B N H"]:
    """Returns the tokens of every node, its parent and its grandparent; above the root these are the known tokens."""
    above = jnp.maximum(with_batch(draft.topology.parents, 2), 0)
    above = jnp.broadcast_to(above, draft.tokens.shape)
    tokens = [draft.tokens]
    for step in range(1, COMPARED):
        upper = jnp.take_along_axis(tokens[-1], above, axis=1)
        tokens.append(upper.at[:, 0].set(pending.history[:, step]))
    return jnp.stack(tokens, axis=-1)


def recalled(
    memory: Memory, history: Int[Array, "B M H"], positions: Int[Array, "B M"]
) -> tuple[Int[Array, "B M"], Int[Array, "B M"]]:
    """Finds the old node that agrees longest with each node.

    Ties go to the one with the longest accepted path, whose own context is the truest, then to the lowest id.

    Args:
        history: tokens of the nodes, their parents and grandparents.
        positions: the positions after them.

    Returns:
        the old nodes' ids, and their agreement: 0 if none is at the position, 1 for position alone, up to 1 + H.
    """
    same = positions[:, :, None] == memory.positions[:, None, :]
    agreement = same.astype(jnp.int32)
    for step in range(COMPARED):
        same = same & (history[:, :, None, step] == memory.history[:, None, :, step])
        agreement = agreement + same.astype(jnp.int32)
    nodes = memory.positions.shape[1]
    order = agreement * jnp.int32(nodes + 1) + memory.common[:, None, :]
    node = jnp.argmax(order, axis=-1).astype(jnp.int32)
    return node, jnp.take_along_axis(agreement, node[..., None], axis=-1)[..., 0]


def mixed(
    echo: Echo,
    memory: Memory,
    log_q: Float[Array, "B M V"],
    history: Int[Array, "B M H"],
    positions: Int[Array, "B M"],
) -> Float[Array, "B M V"]:
    """Returns log q', normalized; ``log_q`` is the drafter's, after nodes given as to ``recalled``."""
    node, agreement = recalled(memory, history, positions)
    old = jnp.take_along_axis(memory.log_probs, node[..., None], axis=1)
    return blended(echo, log_q, old, agreement)


def blended(
    echo: Echo, log_q: Float[Array, "*rows V"], old: Float[Array, "*rows V"], agreement: Int[Array, "*rows"]
) -> Float[Array, "*rows V"]:
    """Returns log q', normalized, for nodes whose agreement is as ``recalled`` returns it."""
    shares = [(1, 0), *(getattr(echo, field.name) for field in dataclasses.fields(echo))]
    shares = jnp.float32(shares)[agreement]
    a, b, old = shares[..., :1], shares[..., 1:], jnp.maximum(old, LEAST)
    # With a share of 0, q rules nothing out: 0 times -inf would be NaN.
    return jax.nn.log_softmax(jnp.where(a > 0, a * log_q, jnp.float32(0)) + b * old, axis=-1)
