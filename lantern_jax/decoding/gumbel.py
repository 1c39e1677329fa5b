"""The shared-noise coupling (ours): draft and target race with the same numbers.

At a node with the target's distribution p, let y = argmax(log p + g), where g is the Gumbel noise of that position,
which plain decoding reads too. A child x is accepted when x = y or, under a relaxed rule, when x is the argmax once the
codes of A(x) are removed and their mass is given to x. So strict decoding gives plain decoding's tokens with any draft:
exactly where p is computed in float32, up to near-ties in bfloat16.

Axes: B batch, N nodes (root included), M drafts = N - 1 or nodes of a level, L path length, V vocabulary.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.acceptance import Probabilities
from lantern_jax.decoding.fields import check_fields, named
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.sampling import gumbel_argmax, gumbel_noise
from lantern_jax.decoding.topology import drafted, take_codes, take_nodes, with_batch
from lantern_jax.decoding.verification import Verification, check_draws, cut, deepest, verification
from lantern_jax.io.errors import LanternError

# How an accepted path is chosen.
PATHS = ("longest", "followed")
# The most bytes of noise that a program keeps; the demo's takes 4.5 MB a picture, LlamaGen's 17 MB.
_MOST_NOISE = 1 << 26


class Greedy(Record):
    """The empty draws of temperature 0: tokens are argmaxes, and every coupling takes the longest path.

    Example:
        >>> log_q = jnp.log(jnp.array([[[0.25, 0.75]]]))
        >>> lantern_jax.couplings.Greedy().perturb(log_q, 0, np.array([0])) is log_q
        True
    """

    def perturb(self, log_q: Float[Array, "B M V"], depth: int, nodes) -> Float[Array, "B M V"]:
        """Returns what ranks the children of nodes at a depth: log q."""
        return log_q


class SharedNoise(Record):
    """The draws of ``Gumbel``.

    Attributes:
        noise: float32 [B, L, V]; row d is for the token after a node of depth d.
    """

    noise: Float[Array, "B L V"]

    def perturb(self, log_q: Float[Array, "B M V"], depth: int, nodes) -> Float[Array, "B M V"]:
        """Returns what ranks the children of nodes at a depth: log q + g."""
        return log_q + self.noise[:, depth][:, None]


@dataclass(frozen=True)
class Gumbel:
    """Draft and target race with the same noise (ours): strict decoding gives plain decoding's tokens.

    Attributes:
        path: how to choose among several accepted children: ``longest``, the longest accepted path, ties to the
            earliest in depth-first order; or ``followed`` (ours), the longest path where a relaxed rule accepts only
            tokens that are followed by a guess equal to the target's own token, so that the path continues after each,
            by that guess or a longer way. Tokens without an alternative, such as a forced row end, are no guesses: what
            comes after them counts. At temperature 0 it is always the longest.

    Raises:
        LanternError: an unknown path policy.

    Example:
        >>> lantern_jax.couplings.Gumbel(), lantern_jax.couplings.Gumbel("followed")
        (Gumbel(path='longest'), Gumbel(path='followed'))
    """

    path: str = named("longest", PATHS)

    def __post_init__(self):
        check_fields(self)

    def draws(self, keys, positions, rounds, levels, vocab_size, sampling) -> SharedNoise | Greedy:
        """Implements ``Coupling.draws``: plain decoding's own noise of L positions."""
        if sampling.greedy:
            return Greedy()
        positions = positions[:, None] + jnp.arange(levels, dtype=jnp.int32)[None]
        return SharedNoise(gumbel_noise(keys, positions, vocab_size))

    def noise_of(
        self, keys, length: int, levels: int, vocab_size, sampling
    ) -> Float[Array, "B T+L V"] | None:
        """Draws the noise of whole sequences, which rounds then look up (``noise_at``): with L levels, a round would
        draw L rows again, of which few are new. Returns None where that gains nothing, or takes too much memory.
        """
        rows = length + levels
        if sampling.greedy or levels == 1 or 4 * len(keys) * rows * vocab_size > _MOST_NOISE:
            return None
        positions = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (len(keys), rows))
        return gumbel_noise(keys, positions, vocab_size)

    def verify(self, draft, log_probs, draws, rule, codebook, max_count) -> Verification:
        noise = _noise(draws, log_probs, draft.topology)
        topology, depth = draft.topology, draft.topology.depth
        with jax.named_scope("target_tokens"):
            wanted = gumbel_argmax(log_probs, None if noise is None else take_nodes(noise, depth))
        wanted_here = take_nodes(wanted, drafted(topology.parents))
        exact = accepted = draft.tokens[:, 1:] == wanted_here
        if not rule.is_strict:
            with jax.named_scope("relaxed_accepts"):
                relaxed = _relaxed(draft, log_probs, noise, wanted_here, rule, codebook)
                if self.path == "followed" and noise is not None:
                    relaxed = relaxed & _followed(draft, log_probs, exact)
                accepted = exact | relaxed
        last = cut(topology, deepest(topology, accepted), max_count)
        bonus = jnp.take_along_axis(wanted, last[:, None], axis=1)[:, 0]
        return verification(draft, last, bonus, wanted, ~exact, wanted_here, codebook)


def noise_at(noise: Float[Array, "B T+L V"], positions: Int[Array, " B"], levels: int) -> SharedNoise:
    """Looks up the draws of rounds whose roots predict these positions."""
    if len(noise) == 1:
        return SharedNoise(lax.dynamic_slice_in_dim(noise, positions[0], levels, axis=1))
    rows = positions[:, None] + jnp.arange(levels, dtype=jnp.int32)[None]
    return SharedNoise(noise[jnp.arange(len(noise), dtype=jnp.int32)[:, None], rows])


def _followed(draft, log_probs, exact: Bool[Array, "B M"]) -> Bool[Array, "B M"]:
    """Tells which drafted nodes have the target's own token after them, behind no more than tokens without a choice."""
    choice = take_nodes(
        jnp.sum(log_probs > -jnp.inf, axis=-1, dtype=jnp.int32) > 1, drafted(draft.topology.parents)
    )
    below = with_batch(draft.topology.ancestors, 3)[:, 1:, 1:]
    # Nodes from the root to each, itself included, past which a path does not go by itself.
    steps = jnp.sum(below & (choice | ~exact)[:, None, :], axis=-1, dtype=jnp.int32)
    return jnp.any(
        below & (exact & choice)[:, :, None] & (steps[:, :, None] == steps[:, None, :] + 1), axis=1
    )


def _noise(draws, log_probs, topology) -> Float[Array, "B L V"] | None:
    if isinstance(draws, Greedy):
        return None
    check_draws(draws, SharedNoise, "gumbel", "SharedNoise(noise)")
    rows = (log_probs.shape[0], topology.max_depth + 1, log_probs.shape[2])
    if draws.noise.shape != rows:
        raise LanternError(
            f"noise has shape {draws.noise.shape}: give {rows}, a row for every depth of the tree"
        )
    return draws.noise


def _relaxed(draft, log_probs, noise, wanted: Int[Array, "B M"], rule, codebook) -> Bool[Array, "B M"]:
    """Tells which children the rule accepts: by its own test, or because they win the race with their loan.

    A child wins iff every code that beats its new value lies in A(x). Both sides are counted, which costs one fused
    pass over the vocabulary and a gather of K numbers per child.
    """
    child, parents, depth = draft.tokens[:, 1:], *map(drafted, (draft.topology.parents, draft.topology.depth))

    def scores():
        values = take_nodes(log_probs, parents)
        return values if noise is None else values + take_nodes(noise, depth - 1)

    def score_at(ids):
        values = take_codes(log_probs, parents, ids)
        return values if noise is None else values + take_codes(noise, depth - 1, ids)

    p = Probabilities(
        at=lambda ids: jnp.exp(take_codes(log_probs, parents, ids)),
        rows=lambda: jnp.exp(take_nodes(log_probs, parents)),
        score_at=score_at,
        scores=scores,
    )
    # A code that is not allowed, or was filtered out, is never accepted, even with a loan.
    log_p, depth_here = take_codes(log_probs, parents, child), with_batch(depth, 2)
    allowed = log_p > -jnp.inf
    accepts = rule.accepts(p, child, wanted, depth_here, codebook)
    if accepts is not None:
        return accepts & allowed

    lent, lenders = rule.lend(p, child, depth_here, codebook)
    present = jnp.maximum(lenders, 0)
    boosted = jnp.where(lent == 0, log_p, jnp.log(jnp.exp(log_p) + lent))
    if noise is not None:
        boosted = boosted + take_codes(noise, depth - 1, child)

    def beats(value, code):
        higher = (value > boosted[..., None]) & (code != child[..., None])
        return higher | ((value == boosted[..., None]) & (code < child[..., None]))

    codes = jnp.arange(log_probs.shape[-1], dtype=jnp.int32)[None, None, :]
    rivals = jnp.sum(beats(scores(), codes), axis=-1, dtype=jnp.int32)
    beaten = jnp.sum(beats(score_at(present), present) & (lenders >= 0), axis=-1, dtype=jnp.int32)
    return (rivals == beaten) & allowed
