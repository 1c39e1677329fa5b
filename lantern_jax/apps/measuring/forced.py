"""Forced acceptance: all the work of verification, but accepted lengths from a profile instead of its verdict.

With random weights next to nothing is accepted, and what a round costs depends on what is accepted, above all on how
many rounds there are. Replaying the lengths measured with a trained drafter shows what the engine makes of them.

Axes: B batch, N nodes (root included), L path length = max depth + 1.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.topology import take_nodes, with_batch
from lantern_jax.decoding.verification import Coupling, Verification


@dataclass(frozen=True)
class Forced:
    """A coupling that replaces another one's verdict; static, like any coupling.

    How many tokens are accepted is drawn with a key made from everything that the other coupling found, so that no
    compiler can leave that work out. The path is one of the tree's: down to its first node of that depth or, where a
    tree grown anew is not that deep, of the greatest depth below it; it ends where the stream does. The bonus token is
    what the target wants after that node.

    Attributes:
        coupling: the one whose draws are made and whose verification is done.
        chances: the chances of 0 to max depth accepted tokens (``accept_lengths.AcceptLengths.over``).
    """

    coupling: Coupling
    chances: tuple[float, ...]

    def draws(self, keys, positions, rounds, levels, vocab_size, sampling) -> Any:
        """Returns the other coupling's draws."""
        return self.coupling.draws(keys, positions, rounds, levels, vocab_size, sampling)

    def verify(self, draft, log_probs, draws, rule, codebook, max_count) -> Verification:
        """Replaces the accepted path in the other coupling's verdict."""
        verdict = self.coupling.verify(draft, log_probs, draws, rule, codebook, max_count)
        topology, lengths = draft.topology, self._lengths(verdict, max_count)
        depth = with_batch(topology.depth, 2)
        reached = jnp.where(depth <= jnp.minimum(lengths, max_count)[:, None], depth, -1)
        last = jnp.argmax(reached, axis=1).astype(jnp.int32)
        return verdict.replace(
            path=take_nodes(topology.node_paths, last),
            count=take_nodes(topology.depth, last),
            bonus=jnp.take_along_axis(verdict.wanted, last[:, None], axis=1)[:, 0],
        )

    def _lengths(self, verdict: Verification, max_count: Int[Array, " B"]) -> Int[Array, " B"]:
        luck = jax.vmap(_luck)(verdict, max_count)
        limits = np.cumsum(self.chances)[:-1].astype(np.float32)
        return jnp.sum(luck[:, None] >= limits[None], axis=1, dtype=jnp.int32)


def _luck(verdict: Verification, room: Int[Array, ""]) -> Float[Array, ""]:
    """Returns a number in [0, 1) made from a sequence's place in its stream and every number of its verdict."""
    found = [leaf.reshape(-1) for leaf in jax.tree.leaves(verdict)]
    words = [
        jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        if leaf.dtype == jnp.float32
        else leaf.astype(jnp.uint32)
        for leaf in found
    ]
    # Odd weights by place: sums are then equal only by accident.
    weights = [2 * np.arange(word.size, dtype=np.uint32) + 1 for word in words]
    sums = [jnp.sum(word * weight, dtype=jnp.uint32) for word, weight in zip(words, weights, strict=True)]
    key = jax.random.fold_in(jax.random.key(0), room.astype(jnp.uint32))
    for number in sums:
        key = jax.random.fold_in(key, number)
    return jax.random.uniform(key, dtype=jnp.float32)
