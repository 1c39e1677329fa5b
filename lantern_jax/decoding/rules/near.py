"""Near (ours): a code stands in for one that is close to it. Axes: *rows are any axes of tokens on trial."""

from typing import ClassVar

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float

from lantern_jax.decoding.acceptance import Rule, code_distance
from lantern_jax.decoding.fields import number


@flax.struct.dataclass
class Near(Rule):
    """x is accepted for the wanted y if it lies within ``tau`` of y and p(x) >= p(y) / ratio. Coupling ``Gumbel``.

    On shared noise plain decoding's token y is known, so x is compared with y itself: no substituted code is further
    than tau from the one it replaces. p(x) > 0 is always required. Ids without neighbours stand in for no other. At
    temperature 0, y is the argmax and p the unfiltered softmax.

    Attributes:
        tau: [], how far a code may lie, in units of the codebook's ``spacing``, so that it means the same for every
            tokenizer; 0 is strict where all codes differ.
        ratio: [], how many times less probable than the wanted code it may be.

    Example:
        >>> codes, neighbours = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([[1, 2], [0, 2], [1, 0]])
        >>> codebook = lantern_jax.Codebook(neighbours, codes)
        >>> p = jnp.array([0.25, 0.125, 0.625])
        >>> after = lantern_jax.rules.Probabilities(at=lambda ids: p[ids], rows=lambda: p)
        >>> wanted = jnp.array([1, 1])  # code 0 lies 1 from it, code 2 lies 2, and the spacing is 1.33
        >>> lantern_jax.rules.Near(tau=1.0).accepts(after, jnp.array([0, 2]), wanted, None, codebook).tolist()
        [True, False]
    """

    couplings: ClassVar = ("gumbel",)
    # Distances to the nearest code set the unit.
    k: ClassVar[int] = 1
    tau: Float[Array, ""] = number(1.5, note="0 is strict")
    ratio: Float[Array, ""] = number(10.0, low=1)

    def accepts(self, p, token, wanted, depth, codebook):
        book = codebook.measured()
        reach = jnp.asarray(self.tau, jnp.float32) * book.spacing
        close = book.has(token) & book.has(wanted) & (code_distance(book, token, wanted) <= reach)
        p_x = p.at(token)
        return close & (p_x > 0) & (p_x * jnp.asarray(self.ratio, jnp.float32) >= p.at(wanted))
