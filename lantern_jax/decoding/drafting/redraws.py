"""Redrawing a window's guesses under the rejection coupling, once the target's distributions p are known.

    independent  x ~ p afresh (speculative Jacobi decoding, arXiv 2410.01699)
    maximal      x stays with probability min(1, p(x) / q(x)), else x ~ normalize(max(p - q, 0)) (SCD, arXiv 2510.24211,
                 algorithm of its maximal coupling; SJD-PAC, arXiv 2603.18599, calls it adaptive continuation)
    shared       x = argmax(log p + G), G the same noise for a position in every round (SCD, its Gumbel coupling)

Each turns a guess with the law q into one with the law p, so that p is the next test's q. A guess stays what it was
with probability sum(p q), 1 - TV(p, q), and at least (1 - TV) / (1 + TV) respectively. The coupling's accept tests and
residual draws read none of the numbers drawn here. A guess that a test has read no longer follows q: ``Rejection``
reads none beyond the place where it stops; ``Block`` reads all, so only independent draws work with it.

Axes: B batch, W window, F first places with siblings, V codes.
"""

from collections.abc import Callable, Mapping

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.rejection import Streams
from lantern_jax.decoding.sampling import first_argmax, keep_uniforms, window_noise


@flax.struct.dataclass
class Guesses:
    """The last round's guesses, moved to their places in this round's window.

    Attributes:
        tokens: int32 [B, W].
        log_q: float32 [B, W, V], the distributions they were drawn from.
        there: bool [B, W], which places had a guess.
    """

    tokens: Int[Array, "B W"]
    log_q: Float[Array, "B W V"]
    there: Bool[Array, "B W"]


# (draws, old, log p [B, W, V], F) -> (tokens [B, W], values [B, F, V]). The best codes of a row of values are draws
# without replacement from that place's p, in order, beginning with its token.
Redraw = Callable[[Streams, Guesses, Float[Array, "B W V"], int], tuple[Array, Array]]


def independent(draws: Streams, old: Guesses, log_p: Float[Array, "B W V"], front: int):
    """Draws afresh."""
    values = draws.perturb(log_p, 0, np.arange(log_p.shape[1]))
    return first_argmax(values), values[:, :front]


def shared(draws: Streams, old: Guesses, log_p: Float[Array, "B W V"], front: int):
    """Draws with noise that stays the same for a position."""
    positions = draws.positions[:, None] + jnp.arange(log_p.shape[1], dtype=jnp.int32)[None]
    values = log_p + window_noise(draws.keys, positions, log_p.shape[2])
    return first_argmax(values), values[:, :front]


def maximal(draws: Streams, old: Guesses, log_p: Float[Array, "B W V"], front: int):
    """Keeps the last guesses as often as p allows."""
    width = log_p.shape[1]
    p, q = jnp.exp(log_p), jnp.exp(old.log_q)
    p_x, q_x = (jnp.take_along_axis(values, old.tokens[..., None], axis=2)[..., 0] for values in (p, q))
    luck = keep_uniforms(draws.keys, draws.positions, draws.rounds, width)
    # No draw from q has q = 0: such a guess (a forced token, say) is never kept.
    kept = old.there & (q_x > 0) & (luck * q_x < p_x)
    residual = jnp.maximum(p - q, 0)
    # Where there was no guess, and where rounding leaves no residual, the draw is from p.
    whole = ~old.there | ~jnp.any(residual > 0, axis=-1)
    log_left = jnp.where(whole[..., None], log_p, jnp.log(residual))
    drawn = first_argmax(draws.perturb(log_left, 0, np.arange(width)))
    tokens = jnp.where(kept, old.tokens, drawn)
    # Siblings have their own noise: the residual's depends on the first guess.
    values = draws.perturb(log_p[:, :front], 0, np.arange(width, width + front))
    batch, place = np.ogrid[: log_p.shape[0], :front]
    return tokens, values.at[batch, place, tokens[:, :front]].set(jnp.inf)


REDRAWS: Mapping[str, Redraw] = {"independent": independent, "maximal": maximal, "shared": shared}
# The redraw that keeps nothing of a guess.
AFRESH = "independent"
