"""Acceptance rules: how much probability a draft token may borrow from its codebook neighbours.

Axes: V codes, C channels, K neighbours.

A rule turns a token x and the target's distribution p into A(x), the longest prefix of x's k nearest codes
whose total probability stays within a bound, and m(x) = p(x) + p(A(x)):

    strict      A is empty
    LANTERN     bound = delta                  (arXiv 2410.03355)
    LANTERN++   bound = (lam - 1) * p(x)       (arXiv 2502.06352)
"""

import math

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RULE_NAMES = ("strict", "lantern", "lantern++")


@flax.struct.dataclass
class Codebook:
    """What relaxed rules know of the codes.

    Attributes:
        neighbours: int32 [V, K], nearest first; -1 ends a row early (ids outside the codebook: all -1).
        codes: float32 [V, C], the space in which distances are reported.
    """

    neighbours: Int[Array, "V K"]
    codes: Float[Array, "V C"]


@flax.struct.dataclass
class Strict:
    """No relaxation: tokens follow the target's distribution exactly."""

    @property
    def k(self) -> int:
        """Number of neighbours: none."""
        return 0


@flax.struct.dataclass
class Lantern:
    """LANTERN: neighbours lend up to ``delta`` in all. ``k`` is static, ``delta`` [] (in [0, 1)) traced."""

    delta: Float[Array, ""]
    k: int = flax.struct.field(pytree_node=False, default=0)

    def bound(self, p_x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Probability that the neighbours of a token with probability ``p_x`` may lend."""
        return jnp.broadcast_to(jnp.asarray(self.delta, jnp.float32), p_x.shape)


@flax.struct.dataclass
class LanternPlusPlus:
    """LANTERN++: neighbours lend up to (lam - 1) times p(x). ``k`` is static, ``lam`` [] (>= 1) traced."""

    lam: Float[Array, ""]
    k: int = flax.struct.field(pytree_node=False, default=0)

    def bound(self, p_x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Probability that the neighbours of a token with probability ``p_x`` may lend."""
        return (jnp.asarray(self.lam, jnp.float32) - jnp.float32(1)) * p_x


Rule = Strict | Lantern | LanternPlusPlus


def rule_from_name(
    name: str, k: int = 0, delta: float = 0.0, lam: float = 1.0, vocab_size: int | None = None
) -> Rule:
    """Checks Python numbers and makes the rule ``strict``, ``lantern`` (k, delta) or ``lantern++`` (k, lam).

    Raises:
        ValueError: an unknown name, k outside 0..V-1, delta outside [0, 1) or lam under 1.
    """
    if name not in RULE_NAMES:
        raise ValueError(f"unknown rule {name!r}: choose one of {', '.join(RULE_NAMES)}")
    if name == "strict":
        return Strict()
    if k < 0 or int(k) != k or (vocab_size is not None and k >= vocab_size):
        most = "" if vocab_size is None else f" and < {vocab_size}, the number of codes"
        raise ValueError(f"k = {k} neighbours is not valid: give a whole number >= 0{most}")
    if name == "lantern":
        if not 0 <= delta < 1:
            raise ValueError(f"delta {delta} is not valid: give a number in [0, 1)")
        return Lantern(delta=jnp.asarray(delta, jnp.float32), k=int(k))
    if not (math.isfinite(lam) and lam >= 1):
        raise ValueError(f"lambda {lam} is not valid: give a finite number >= 1 (1 is strict)")
    return LanternPlusPlus(lam=jnp.asarray(lam, jnp.float32), k=int(k))


def is_strict(rule: Rule) -> bool:
    """Whether a rule is strict by its static part (k = 0 counts)."""
    return isinstance(rule, Strict) or rule.k == 0


def check_codebook(rule: Rule, codebook: Codebook | None) -> None:
    """Raises ValueError unless ``codebook`` has the neighbours that ``rule`` needs."""
    if is_strict(rule):
        return
    if codebook is None:
        raise ValueError("a relaxed rule needs a codebook: give Codebook(neighbours, codes), or use Strict()")
    if rule.k > codebook.neighbours.shape[1]:
        stored = codebook.neighbours.shape[1]
        raise ValueError(
            f"the rule wants k = {rule.k} neighbours, the table stores {stored}: give k <= {stored}"
        )


def token_neighbours(
    codebook: Codebook, tokens: Int[Array, "*rows"], rule: Lantern | LanternPlusPlus
) -> Int[Array, "*rows K"]:
    """The rule's k nearest codes of ``tokens``, nearest first, -1 after the last one there is."""
    return codebook.neighbours[:, : rule.k][tokens]


def neighbour_mass(
    rule: Lantern | LanternPlusPlus,
    p_x: Float[Array, "*rows"],
    p_neighbours: Float[Array, "*rows K"],
    neighbours: Int[Array, "*rows K"],
) -> tuple[Bool[Array, "*rows K"], Float[Array, "*rows"]]:
    """A(x) and its total probability.

    Args:
        p_x: the target's probability of the token.
        p_neighbours: that of its neighbours (any value where ``neighbours`` is -1).
        neighbours: their ids, nearest first.

    Returns:
        inside, which neighbours are in A(x): none when their total is 0, so a rule with nothing to borrow is
        exactly the strict one; and the total, float32.
    """
    p_neighbours = jnp.where(neighbours >= 0, p_neighbours, jnp.inf)
    inside = jnp.cumsum(p_neighbours, axis=-1) <= rule.bound(p_x)[..., None]
    mass = jnp.sum(jnp.where(inside, p_neighbours, jnp.float32(0)), axis=-1)
    return inside & (mass > 0)[..., None], mass


def code_distance(
    codebook: Codebook, left: Int[Array, "*rows"], right: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Euclidean distance between codes."""
    difference = codebook.codes[left] - codebook.codes[right]
    return jnp.sqrt(jnp.sum(difference * difference, axis=-1))
