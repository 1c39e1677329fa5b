"""Rules that ask whether a code is good enough, not whose place it takes. Coupling ``Gumbel`` only.

Axes: V codes; *rows are any axes of tokens on trial.
"""

from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.acceptance import Rule
from lantern_jax.decoding.fields import number, whole


@flax.struct.dataclass
class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774, section 2.3.1): x is accepted when it is not improbable.

    That is, p(x) > min(epsilon, delta_factor exp(-H)), where H is the entropy of p in nats. The flatter p, the lower
    the bar, and for visual codes it is low: nothing bounds the distortion. Medusa takes the longest accepted path, so
    use ``Gumbel("longest")``; where no draft is typical, the token is plain decoding's, a draw from p. At temperature 0
    typical tokens still pass, judged by the unfiltered softmax; Medusa's own greedy test is the strict rule.

    Attributes:
        epsilon: [], a token this probable is always typical.
        delta_factor: [], the paper uses the square root of epsilon. (In Medusa's code a helper's defaults are
            swapped; its callers are right.) 0 accepts every code that has any probability.

    Example:
        >>> p = jnp.array([0.25, 0.05, 0.7])
        >>> after = lantern_jax.rules.Probabilities(at=lambda ids: p[ids], rows=lambda: p)
        >>> lantern_jax.rules.Typical().accepts(after, jnp.array([0, 1]), None, None, None).tolist()
        [True, False]
    """

    couplings: ClassVar = ("gumbel",)
    epsilon: Float[Array, ""] = number(0.09, high=1, low_open=True)
    delta_factor: Float[Array, ""] = number(0.3)

    def accepts(self, p, token, wanted, depth, codebook):
        entropy = jnp.sum(jax.scipy.special.entr(p.rows()), axis=-1)
        bar = jnp.asarray(self.delta_factor, jnp.float32) * jnp.exp(-entropy)
        return p.at(token) > jnp.minimum(jnp.asarray(self.epsilon, jnp.float32), bar)


@flax.struct.dataclass
class Tolerance(Rule):
    """VADUSA's tolerance (arXiv 2410.21951) as we read it: x is accepted as one of several target samples.

    The paper lets the target draw several tokens at a node and accepts a draft among them; how many, and how they are
    drawn, could not be found. Here they are the ``samples`` best codes of log p + g: draws from p without replacement,
    the first of which is plain decoding's token. At temperature 0 they are the most probable codes.

    Attributes:
        samples: int32 [], how many samples of the target are accepted; 1 is strict.

    Example:
        >>> scores = jnp.log(jnp.array([[0.25, 0.05, 0.7]]))
        >>> after = lantern_jax.rules.Probabilities(None, None, lambda ids: scores[0, ids], lambda: scores)
        >>> rule = lantern_jax.rules.Tolerance(samples=2)
        >>> rule.accepts(after, jnp.array([0, 1]), None, None, None).tolist()
        [True, False]
    """

    couplings: ClassVar = ("gumbel",)
    samples: Int[Array, ""] = whole(2, low=1, note="1 is strict")

    def accepts(self, p, token, wanted, depth, codebook):
        own, scores = p.score_at(token)[..., None], p.scores()
        codes = jnp.arange(scores.shape[-1], dtype=jnp.int32).reshape((1,) * token.ndim + (-1,))
        better = (scores > own) | ((scores == own) & (codes < token[..., None]))
        place = jnp.sum(better, axis=-1, dtype=jnp.int32)
        # Filtered codes are never drawn, even where fewer codes than samples are left.
        return jnp.isfinite(own[..., 0]) & (place < jnp.asarray(self.samples, jnp.int32))
