"""Cool-SD: relax early, tighten late. Axes: *rows are any axes of tokens on trial, V codes."""

from typing import ClassVar

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lantern_jax.decoding.acceptance import NEIGHBOURS, Claim, LanternPlusPlus, Rule
from lantern_jax.decoding.fields import number, whole

COOLING = np.float32(0.7)


@flax.struct.dataclass
class Cool(Rule):
    """Annealed relaxation with the optimal residual (Cool-SD, arXiv 2601.09212).

    Coupling ``Rejection``: x at depth i is accepted with probability f(x) = min(1, omega_i p(x) / q(x)), with
    omega_i = omega exp(-0.7 i - mu); a refusal leaves normalize(max(p - q f, 0)), with f taken at every code. Of all
    residuals this one distorts least: by the sum of max(q f - p, 0) in total variation, which is 0 where omega_i <= 1.
    The definition of mu was not found; here it makes ``omega`` the mean of omega_i over the tree's depths. The paper's
    drafts are chains; in a tree, siblings are tested against the p and q that earlier refusals left.

    Coupling ``Gumbel``, and temperature 0, where p / q is not tested: LANTERN++'s rule with the analogue
    lambda_i = 1 + (omega - 1) exp(-0.7 i) (ours).

    Attributes:
        omega: [], the mean relaxation, the paper's delta, 1.1 to 2 there. At 1 early drafts are still relaxed and late
            ones tightened.
        k: static, the number of neighbours under ``Gumbel``; 0 needs no codebook.

    Example:
        >>> p, q = jnp.array([[0.5, 0.5]]), jnp.array([[0.25, 0.75]])
        >>> claim = lantern_jax.rules.Cool(omega=1.5).claim(p, q, jnp.array([0]), jnp.array([1]), 1, None)
        >>> np.asarray(claim.mass).round(3)  # omega p(x), in a tree one level deep
        array([0.75], dtype=float32)
    """

    couplings: ClassVar = ("gumbel", "rejection")
    omega: Float[Array, ""] = number(1.1, low=1)
    k: int = whole(NEIGHBOURS, traced=False)

    def claim(self, p, q, token, depth, max_depth, codebook):
        mean = np.float32(np.mean(np.exp(-COOLING * np.arange(1, max_depth + 1))))
        weighted = (jnp.asarray(self.omega, jnp.float32) * _cooled(depth) / mean)[..., None] * p
        return Claim(
            jnp.take_along_axis(weighted, token[..., None], axis=-1)[..., 0], jnp.minimum(q, weighted)
        )

    def lend(self, p, token, depth, codebook):
        extra = jnp.asarray(self.omega, jnp.float32) - 1
        return LanternPlusPlus(self.k, 1 + extra * _cooled(depth)).lend(p, token, depth, codebook)


def _cooled(depth) -> Float[Array, "*rows"]:
    return jnp.exp(-COOLING * jnp.asarray(depth, jnp.float32))
