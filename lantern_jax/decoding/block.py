"""Block verification: one test decides how much of a chain is kept, instead of one per token (arXiv 2403.10444).

The drafted tokens x_1 .. x_D of a chain keep a joint weight, a_0 = 1 and a_i = min(1, a_{i-1} p(x_i) / q(x_i)). With
S_i = sum of max(a_i p - q, 0) over the codes that follow x_i, the first i tokens are offered with probability
h_i = S_i / (S_i + 1 - a_i), and h_D = a_D; the largest i whose test u_i < h_i passes is taken, and the next token is
drawn from normalize(max(a_i p - q, 0)), or from p after x_D. So a token that its own test would refuse may be kept for
the sake of later ones: the law is exactly p's, and no other test of a single chain accepts more on average. Since a
token's fate depends on later tokens, those after the last one taken no longer follow q, and a window may not keep them
(``Streams.reads_ahead``).

Axes: B batch, N nodes = D + 1 (root included), D depth, V vocabulary.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.gumbel import Greedy, Gumbel
from lantern_jax.decoding.rejection import Streams
from lantern_jax.decoding.sampling import gumbel_argmax
from lantern_jax.decoding.topology import take_nodes
from lantern_jax.decoding.verification import Verification, check_draws, check_log_q, verification
from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Block:
    """A chain is tested as a whole (arXiv 2403.10444), under the strict rule.

    Draws are as ``Rejection``'s. At temperature 0 it is greedy.

    Example:
        >>> keys, zero = jax.random.split(jax.random.key(7), 1), jnp.zeros(1, jnp.int32)
        >>> draws = lantern_jax.couplings.Block().draws(keys, zero, zero, 3, 16, lantern_jax.SamplingParams.create())
        >>> type(draws).__name__
        'Streams'
    """

    def draws(self, keys, positions, rounds, levels, vocab_size, sampling) -> Streams | Greedy:
        return Greedy() if sampling.greedy else Streams(keys, positions, rounds, reads_ahead=True)

    def verify(self, draft, log_probs, draws, rule, codebook, max_count) -> Verification:
        """Implements ``Coupling.verify``; a draft without log q is a point mass on every token."""
        _check(draft, log_probs, draws, rule)
        if isinstance(draws, Greedy):
            return Gumbel().verify(draft, log_probs, draws, rule, codebook, max_count)
        uniforms, noise = draws.for_tests(draft.topology.num_nodes, log_probs.shape[-1])
        last, p = self.walk(draft, log_probs, uniforms, max_count)
        bonus, wanted = gumbel_argmax(jnp.log(p), noise), gumbel_argmax(log_probs, noise[:, None])
        swapped = jnp.zeros(draft.tokens[:, 1:].shape, bool)
        return verification(draft, last, bonus, wanted, swapped, draft.tokens[:, 1:], codebook)

    def walk(
        self, draft, log_probs, uniforms: Float[Array, "B N"], max_count: Int[Array, " B"]
    ) -> tuple[Int[Array, " B"], Float[Array, "B V"]]:
        """Returns how many tokens are kept, and the distribution of the bonus token after them.

        Args:
            uniforms: in [0, 1), one for the test of each node; the root's is not read.
            max_count: a sequence's chain is verified as if it were at most that long.
        """
        depth = draft.topology.max_depth
        if not depth:
            return jnp.zeros(uniforms.shape[0], jnp.int32), jnp.exp(log_probs[:, 0])
        p, token = jnp.exp(log_probs), draft.tokens[:, 1:, None]
        if draft.log_q is None:
            codes = jnp.arange(log_probs.shape[2], dtype=jnp.int32)[None, None]
            q = (codes == token).astype(jnp.float32)
        else:
            # The rows that the chain's tokens were drawn from.
            q = jnp.exp(take_nodes(draft.log_q, draft.topology.draft_rows[..., :-1]))
        p_x, q_x = (jnp.take_along_axis(mass, token, axis=-1)[..., 0] for mass in (p[:, :-1], q))
        # A token that q cannot draw (a user's drafting may propose one) passes no test.
        ratio = jnp.where(q_x > 0, p_x / jnp.where(q_x > 0, q_x, 1), jnp.float32(0))
        weights = [jnp.ones_like(ratio[:, 0])]
        for i in range(depth):
            weights.append(jnp.minimum(weights[-1] * ratio[:, i], 1))
        weight = jnp.stack(weights, axis=1)
        end = jnp.clip(max_count, 0, depth)[:, None]
        step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
        left = jnp.maximum(weight[:, :-1, None] * p[:, :-1] - q, 0)
        surplus = jnp.pad(jnp.sum(left, axis=-1), ((0, 0), (0, 1)))
        room = surplus + 1 - weight
        # Without surplus and without loss p = q, and later tokens decide. A NaN passes no test.
        decides = room <= 0
        offered = jnp.where(decides, jnp.float32(1), surplus / jnp.where(decides, 1, room))
        offered = jnp.where(step == end, weight, offered)
        passed = (uniforms < offered) & (step <= end)
        last = jnp.max(jnp.where(passed, step, 0), axis=1)
        chosen = jnp.take_along_axis(left, jnp.minimum(last, depth - 1)[:, None, None], axis=1)[:, 0]
        total = jnp.sum(chosen, axis=-1, keepdims=True)
        whole = jnp.take_along_axis(p, last[:, None, None], axis=1)[:, 0]
        drawn = jnp.where(total > 0, chosen / jnp.where(total > 0, total, 1), whole)
        return last, jnp.where((last == end[:, 0])[:, None], whole, drawn)


def _check(draft, log_probs, draws, rule) -> None:
    topology = draft.topology
    if topology.children.shape[-1] != 1 or topology.num_nodes != topology.max_depth + 1:
        raise LanternError(
            f"the block coupling verifies chains, and the tree of {topology.num_nodes} nodes branches: "
            "give DraftTree.chain(depth), or use coupling rejection"
        )
    if not rule.is_strict:
        raise LanternError(
            f"the block coupling has no relaxed test, and the rule is {type(rule).__name__}: use rule strict"
        )
    check_draws(draws, Streams | Greedy, "block", "Streams(keys, positions, rounds)")
    if not isinstance(draws, Greedy):
        check_log_q(draft, log_probs)
