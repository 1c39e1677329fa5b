"""Acceptance rules: how much probability a draft token may borrow from other codes.

Axes: V codes, C channels, K neighbours; *rows is any number of tokens under trial.

A rule turns a token x and the target's distribution p into A(x), the codes that lend it their probability, and
m(x) = p(x) + p(A(x)). For the papers' rules A(x) is the longest prefix of x's k nearest codes whose total probability
stays within a bound:

    strict      A is empty
    LANTERN     bound = delta                  (arXiv 2410.03355)
    LANTERN++   bound = (lam - 1) * p(x)       (arXiv 2502.06352)

Another rule is another subclass of ``Rule``; couplings ask nothing else of it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RULE_NAMES = ("strict", "lantern", "lantern++")
# What the relaxed rules use where nothing else is asked for: a mild relaxation (k 10, lambda 2).
NEIGHBOURS, DELTA, LAM = 10, 0.05, 2.0


@flax.struct.dataclass
class Codebook:
    """What relaxed rules know of the codes.

    Attributes:
        neighbours: int32 [V, K], nearest first; -1 ends a row early (ids outside the codebook: all -1).
        codes: float32 [V, C], the space in which distances are reported.
    """

    neighbours: Int[Array, "V K"]
    codes: Float[Array, "V C"]


@dataclass(frozen=True)
class Probabilities:
    """The target's distribution p after the nodes whose children are on trial, read without being copied out.

    Attributes:
        at: ids int32 [*rows] or [*rows, K] -> p of those ids, float32.
        rows: () -> the whole distributions, float32 [*rows, V].
    """

    at: Callable[[Int[Array, "*rows K"]], Float[Array, "*rows K"]]
    rows: Callable[[], Float[Array, "*rows V"]]


class Loan(NamedTuple):
    """What a rule lends to tokens on trial.

    Attributes:
        lent: float32 [*rows], m(x) - p(x). The difference, not m: where a rule lends nothing it is exactly the
            strict one, without a rounding.
        lenders: int32 [*rows, K], the codes of A(x), which lose what they lent; -1 is none.
    """

    lent: Float[Array, "*rows"]
    lenders: Int[Array, "*rows K"]


class Rule:
    """What a coupling asks of an acceptance rule.

    A subclass is a pytree: what a sweep changes is traced, what decides shapes is static.
    """

    @property
    def is_strict(self) -> bool:
        """Whether the rule can never lend anything, by its static part alone; ``lend`` is then not called."""
        return False

    @property
    def k(self) -> int:
        """Neighbours a token that the rule reads of the codebook; 0 where it needs no codebook."""
        return 0

    def lend(
        self,
        p: Probabilities,
        token: Int[Array, "*rows"],
        depth: Int[Array, "*rows"],
        codebook: Codebook | None,
    ) -> Loan:
        """The loan to each token x on trial.

        Args:
            p: of the node that x is a child of: the current one, where earlier siblings were refused.
            token: x.
            depth: of x in its tree, from 1; broadcasts against ``token``.
        """
        raise ValueError(f"{type(self).__name__} has no lend: the rejection coupling needs a rule that has")

    def accepts(
        self,
        p: Probabilities,
        token: Int[Array, "*rows"],
        wanted: Int[Array, "*rows"],
        depth: Int[Array, "*rows"],
        codebook: Codebook | None,
    ) -> Bool[Array, "*rows"] | None:
        """Whether x may stand in for ``wanted``, the token that plain decoding puts there; coupling ``Gumbel`` only.

        x = wanted is accepted without asking. None, the default, leaves it to ``lend``: x is accepted when it wins
        with its loan.
        """
        return None


@flax.struct.dataclass
class Strict(Rule):
    """No relaxation: tokens follow the target's distribution exactly."""

    @property
    def is_strict(self) -> bool:
        """True."""
        return True


@flax.struct.dataclass
class _NearestCodes(Rule):
    """A(x) is a prefix of x's k nearest codes whose total stays within ``bound(p(x))``."""

    @property
    def is_strict(self) -> bool:
        """Whether there are no neighbours to borrow from."""
        return self.k == 0

    def lend(self, p, token, depth, codebook) -> Loan:
        """A(x) and its total."""
        neighbours = codebook.neighbours[:, : self.k][token]
        near = jnp.where(neighbours >= 0, p.at(jnp.maximum(neighbours, 0)), jnp.inf)
        inside = jnp.cumsum(near, axis=-1) <= self.bound(p.at(token))[..., None]
        lent = jnp.sum(jnp.where(inside, near, jnp.float32(0)), axis=-1)
        return Loan(lent, jnp.where(inside, neighbours, -1))


@flax.struct.dataclass
class Lantern(_NearestCodes):
    """LANTERN: neighbours lend up to ``delta`` in all. ``k`` is static, ``delta`` [] (in [0, 1)) traced."""

    delta: Float[Array, ""]
    k: int = flax.struct.field(pytree_node=False, default=NEIGHBOURS)

    def bound(self, p_x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Probability that the neighbours of a token with probability ``p_x`` may lend."""
        return jnp.broadcast_to(jnp.asarray(self.delta, jnp.float32), p_x.shape)


@flax.struct.dataclass
class LanternPlusPlus(_NearestCodes):
    """LANTERN++: neighbours lend up to (lam - 1) times p(x). ``k`` is static, ``lam`` [] (>= 1) traced."""

    lam: Float[Array, ""]
    k: int = flax.struct.field(pytree_node=False, default=NEIGHBOURS)

    def bound(self, p_x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Probability that the neighbours of a token with probability ``p_x`` may lend."""
        return (jnp.asarray(self.lam, jnp.float32) - jnp.float32(1)) * p_x


def rule_from_name(
    name: str,
    k: int = NEIGHBOURS,
    delta: float = DELTA,
    lam: float = LAM,
    vocab_size: int | None = None,
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


def as_rule(rule: Rule | str) -> Rule:
    """A rule from its name, with default bounds, or the rule itself; ValueError for anything else."""
    if isinstance(rule, str):
        return rule_from_name(rule)
    if not isinstance(rule, Rule):
        raise ValueError(f"rule {rule!r} is not valid: give a Rule or one of {', '.join(RULE_NAMES)}")
    return rule


def check_codebook(rule: Rule, codebook: Codebook | None, vocab_size: int | None = None) -> None:
    """Raises ValueError unless ``codebook`` has what ``rule`` needs and fits a vocabulary of V codes.

    Ids are looked at where they are known: not while a program is traced.
    """
    if codebook is None:
        if rule.is_strict or not rule.k:
            return
        raise ValueError("a relaxed rule needs a codebook: give Codebook(neighbours, codes), or use Strict()")
    rows, stored = codebook.neighbours.shape
    if rule.k > stored:
        raise ValueError(
            f"the rule wants k = {rule.k} neighbours, the table stores {stored}: give k <= {stored}"
        )
    if codebook.codes.shape[0] != rows or rows != (vocab_size or rows):
        raise ValueError(
            f"the codebook has {rows} rows of neighbours and {codebook.codes.shape[0]} codes, "
            f"the target {vocab_size or rows}: give those of this target's VQ tokenizer"
        )
    if not stored or isinstance(codebook.neighbours, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    with jax.ensure_compile_time_eval():
        low, high = int(codebook.neighbours.min()), int(codebook.neighbours.max())
    if low < -1 or high >= rows:
        raise ValueError(f"the neighbour table holds ids from {low} to {high}: give -1 (none) to {rows - 1}")


def code_distance(
    codebook: Codebook, left: Int[Array, "*rows"], right: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Euclidean distance between codes."""
    difference = codebook.codes[left] - codebook.codes[right]
    return jnp.sqrt(jnp.sum(difference * difference, axis=-1))
