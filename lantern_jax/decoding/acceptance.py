"""Acceptance rules: how much probability a draft token may borrow from other codes.

Axes: V codes, C channels, K neighbours; *rows are any axes of tokens on trial.

A rule turns a token x and the target's distribution p into A(x), the codes that lend it their probability, and
m(x) = p(x) + p(A(x)). For the papers' rules A(x) is the longest prefix of x's k nearest codes whose total probability
stays within a bound:

    strict      A is empty
    LANTERN     bound = delta                  (arXiv 2410.03355)
    LANTERN++   bound = (lam - 1) * p(x)       (arXiv 2502.06352)

Any other rule is a subclass of ``Rule``, which is all that couplings rely on; ``decoding.rules`` holds some.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.choices import RULES
from lantern_jax.decoding.fields import check_fields, number, whole
from lantern_jax.decoding.record import Record
from lantern_jax.io.errors import LanternError


class Codebook(Record):
    """The codes and their neighbours, for relaxed rules.

    Attributes:
        neighbours: int32 [V, K], nearest first; -1 ends a row early (ids outside the codebook: all -1).
        codes: float32 [V, C], the space in which distances are reported.
        spacing: float32 [], the mean distance of a code to its nearest neighbour, a unit of "near" for any codebook;
            None until ``measured``.

    Example:
        >>> codes, neighbours = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([[1, 2], [0, 2], [1, 0]])
        >>> codebook = lantern_jax.Codebook(neighbours, codes)
        >>> round(float(codebook.measured().spacing), 2)  # nearest codes lie 1, 1 and 2 apart
        1.33
    """

    neighbours: Int[Array, "V K"]
    codes: Float[Array, "V C"]
    spacing: Float[Array, ""] | None = None

    def measured(self) -> "Codebook":
        """Returns the codebook with its ``spacing``, taken over the codes that have a neighbour; 0 if none has."""
        if self.spacing is not None:
            return self
        if not self.neighbours.shape[1]:
            return self.replace(spacing=jnp.float32(0))
        nearest = jnp.asarray(self.neighbours)[:, 0]
        apart = code_distance(self, jnp.arange(nearest.size, dtype=jnp.int32), jnp.maximum(nearest, 0))
        counted = nearest >= 0
        total = jnp.sum(jnp.where(counted, apart, jnp.float32(0)))
        return self.replace(spacing=total / jnp.maximum(jnp.sum(counted, dtype=jnp.float32), jnp.float32(1)))

    def has(self, tokens: Int[Array, "*rows"]) -> Bool[Array, "*rows"]:
        """Tells which ids have neighbours; ids outside the codebook (a row end, say) have none. Needs K >= 1."""
        return jnp.asarray(self.neighbours)[:, 0][tokens] >= 0


@dataclass(frozen=True)
class Probabilities:
    """The target's distribution p after the parents of the tokens on trial, read without being copied.

    Attributes:
        at: ids int32 [*rows] or [*rows, K] -> their p, float32.
        rows: () -> the whole distributions, float32 [*rows, V].
        score_at: ids -> their scores log p + g, g being the shared noise (0 at temperature 0); None except with the
            coupling ``Gumbel``.
        scores: () -> all scores, float32 [*rows, V]; likewise.

    Example:
        >>> p = np.array([0.25, 0.125, 0.625])
        >>> after = lantern_jax.rules.Probabilities(at=lambda ids: p[ids], rows=lambda: p)
        >>> after.at(np.array([0, 2]))
        array([0.25 , 0.625])
    """

    at: Callable[[Int[Array, "*rows K"]], Float[Array, "*rows K"]]
    rows: Callable[[], Float[Array, "*rows V"]]
    score_at: Callable[[Int[Array, "*rows K"]], Float[Array, "*rows K"]] | None = None
    scores: Callable[[], Float[Array, "*rows V"]] | None = None


class Loan(NamedTuple):
    """The probability that a rule lends to tokens on trial.

    Attributes:
        lent: float32 [*rows], m(x) - p(x): the difference, so that a rule that lends nothing is exactly strict.
        lenders: int32 [*rows, K], the codes of A(x), which lose what they lent; -1 is none.

    Example:
        >>> codes, neighbours = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([[1, 2], [0, 2], [1, 0]])
        >>> codebook = lantern_jax.Codebook(neighbours, codes)
        >>> p = jnp.array([0.25, 0.125, 0.625])
        >>> after = lantern_jax.rules.Probabilities(at=lambda ids: p[ids], rows=lambda: p)
        >>> rule = lantern_jax.rules.LanternPlusPlus(k=2, lam=2.0)  # code 0 may borrow its own 0.25
        >>> loan = rule.lend(after, jnp.array([0]), jnp.array([1]), codebook)
        >>> loan.lent.tolist(), loan.lenders.tolist()
        ([0.125], [[1, -1]])
    """

    lent: Float[Array, "*rows"]
    lenders: Int[Array, "*rows K"]


class Claim(NamedTuple):
    """A rule's own accept test, coupling ``Rejection`` only.

    Attributes:
        mass: float32 [*rows], at least 0: x is accepted with probability min(1, mass / q(x)); p(x) for the strict rule.
        kept: float32 [*rows, V], the part of p that acceptance covers, code by code: a refusal leaves
            normalize(max(p - kept, 0)). The strict rule's is q.

    Example:
        >>> p, q = jnp.array([[0.5, 0.5]]), jnp.array([[0.25, 0.75]])
        >>> rule = lantern_jax.rules.Cool(omega=1.5)
        >>> claim = rule.claim(p, q, jnp.array([1]), jnp.array([1]), 1, None)
        >>> np.asarray(claim.mass).round(3)  # q(x) is 0.75 too: code 1 is always accepted
        array([0.75], dtype=float32)
    """

    mass: Float[Array, "*rows"]
    kept: Float[Array, "*rows V"]


@flax.struct.dataclass
class Rule:
    """The interface of an acceptance rule.

    A subclass is a pytree: what a sweep changes is traced, what decides shapes is static. Fields that are declared with
    ``fields.number`` and the like have ranges, in which Python's numbers are checked.

    Attributes:
        kind: the rule's class, static; set automatically.
        couplings: names of the couplings that it goes with; empty for all.
        is_strict: whether the rule's static part says that it never lends anything; ``lend`` is then not called.

    Example:
        >>> import flax.struct
        >>> @flax.struct.dataclass
        ... class Parity(lantern_jax.rules.Rule):
        ...     def accepts(self, p, token, wanted, depth, codebook):
        ...         return token % 2 == wanted % 2
        >>> Parity().accepts(None, np.array([2, 3]), np.array([4, 4]), None, None)
        array([ True, False])
    """

    couplings: ClassVar[tuple[str, ...]] = ()
    is_strict: ClassVar[bool] = False
    # JAX 0.10 to 0.12 compares tree structures of dataclasses without their classes: with only hashes to tell rules
    # with the same fields apart, about one process in thirty ran one rule's program for the other.
    kind: type | None = flax.struct.field(pytree_node=False, default=None, kw_only=True, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "kind", type(self))
        # JAX puts arrays, tracers and marks of its own in their places.
        check_fields(self, (bool, int, float, str, np.generic))

    @property
    def k(self) -> int:
        """Number of neighbours per token that the rule reads; 0 if it needs no codebook."""
        return 0

    def lend(
        self,
        p: Probabilities,
        token: Int[Array, "*rows"],
        depth: Int[Array, "*rows"],
        codebook: Codebook | None,
    ) -> Loan:
        """Returns the loan to each token x on trial.

        Args:
            p: the distribution after x's parent: the current one, where earlier siblings were refused.
            token: x.
            depth: x's depth in its tree, from 1; broadcasts against ``token``.
        """
        raise LanternError(
            f"rule {type(self).__name__} has no accept test for this coupling: define accepts for gumbel, claim for "
            "rejection, or lend for both, or use coupling gumbel"
        )

    def accepts(
        self,
        p: Probabilities,
        token: Int[Array, "*rows"],
        wanted: Int[Array, "*rows"],
        depth: Int[Array, "*rows"],
        codebook: Codebook | None,
    ) -> Bool[Array, "*rows"] | None:
        """Tells whether x may stand in for ``wanted``, plain decoding's token; coupling ``Gumbel`` only.

        x = wanted is always accepted. None, the default, leaves it to ``lend``: x is accepted if it wins with its loan.
        """
        return None

    def claim(
        self,
        p: Float[Array, "*rows V"],
        q: Float[Array, "*rows V"],
        token: Int[Array, "*rows"],
        depth: Int[Array, "*rows"],
        max_depth: int,
        codebook: Codebook | None,
    ) -> Claim | None:
        """Returns the test of each token x, and what its refusal leaves; coupling ``Rejection`` only.

        None, the default, leaves it to ``lend``.

        Args:
            p, q: the current distributions after x's parent: earlier siblings were refused.
            max_depth: the tree's depth.
        """
        return None


@flax.struct.dataclass
class Strict(Rule):
    """No relaxation: tokens follow the target's distribution exactly.

    Example:
        >>> lantern_jax.rules.Strict().is_strict
        True
    """

    is_strict: ClassVar[bool] = True


# Neighbours of a mild relaxation.
NEIGHBOURS = 10


@flax.struct.dataclass
class _NearestCodes(Rule):
    """A(x) is a prefix of x's k nearest codes whose total stays within ``bound(p(x))``."""

    couplings: ClassVar[tuple[str, ...]] = ("gumbel", "rejection")

    @property
    def is_strict(self) -> bool:
        """Whether there are no neighbours to borrow from."""
        return self.k == 0

    def lend(self, p, token, depth, codebook) -> Loan:
        """Lends A(x) and its total."""
        if not self.k:
            # There may be no codebook.
            return Loan(jnp.zeros(token.shape, jnp.float32), jnp.full((*token.shape, 0), -1, jnp.int32))
        # Tables may be unsigned, and -1 is none.
        neighbours = codebook.neighbours[:, : self.k][token].astype(jnp.int32)
        near = jnp.where(neighbours >= 0, p.at(jnp.maximum(neighbours, 0)), jnp.inf)
        inside = jnp.cumsum(near, axis=-1) <= self.bound(p.at(token))[..., None]
        lent = jnp.sum(jnp.where(inside, near, jnp.float32(0)), axis=-1)
        return Loan(lent, jnp.where(inside, neighbours, -1))


@flax.struct.dataclass
class Lantern(_NearestCodes):
    """LANTERN (arXiv 2410.03355): the k nearest codes lend up to ``delta`` in all.

    Attributes:
        k: static, the number of neighbours; 0 is strict.
        delta: [], the most that they lend.

    Example:
        >>> rule = lantern_jax.rules.Lantern(k=10, delta=0.125)
        >>> rule.k, rule.bound(jnp.array([0.25, 0.5])).tolist()
        (10, [0.125, 0.125])
    """

    k: int = whole(NEIGHBOURS, traced=False)
    delta: Float[Array, ""] = number(0.05, high=1, high_open=True)

    def bound(self, p_x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Returns how much the neighbours of a token with probability ``p_x`` may lend."""
        return jnp.broadcast_to(jnp.asarray(self.delta, jnp.float32), p_x.shape)


@flax.struct.dataclass
class LanternPlusPlus(_NearestCodes):
    """LANTERN++ (arXiv 2502.06352): the k nearest codes lend up to (lam - 1) times p(x).

    Attributes:
        k: static, the number of neighbours; 0 is strict.
        lam: [], how many times its own probability a code may have in all.

    Example:
        >>> rule = lantern_jax.rules.LanternPlusPlus(k=10, lam=3.0)
        >>> rule.k, rule.bound(jnp.array([0.25, 0.5])).tolist()
        (10, [0.5, 1.0])
    """

    k: int = whole(NEIGHBOURS, traced=False)
    lam: Float[Array, ""] = number(2.0, low=1, note="1 is strict")

    def bound(self, p_x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Returns how much the neighbours of a token with probability ``p_x`` may lend."""
        return (jnp.asarray(self.lam, jnp.float32) - jnp.float32(1)) * p_x


def check_codebook(rule: Rule, codebook: Codebook | None, vocab_size: int | None = None) -> None:
    """Raises LanternError unless ``codebook`` has what ``rule`` needs and fits a vocabulary of V codes.

    Ids are checked where they are known: not while a program is traced.
    """
    if codebook is None:
        if rule.is_strict or not rule.k:
            return
        raise LanternError(
            "a relaxed rule needs a codebook: give Codebook(neighbours, codes), or use Strict()"
        )
    if not isinstance(codebook, Codebook):
        raise LanternError(f"codebook is {type(codebook).__name__}: give Codebook(neighbours, codes)")
    rows, stored = codebook.neighbours.shape
    if rule.k > stored:
        raise LanternError(
            f"the rule wants k = {rule.k} neighbours, the table stores {stored}: give k <= {stored}"
        )
    if codebook.codes.shape[0] != rows or rows != (vocab_size or rows):
        raise LanternError(
            f"the codebook has {rows} rows of neighbours and {codebook.codes.shape[0]} codes, "
            f"the target {vocab_size or rows}: give the one of this target's VQ tokenizer"
        )
    if not jnp.issubdtype(codebook.neighbours.dtype, jnp.integer):
        raise LanternError(
            f"the neighbour table holds {codebook.neighbours.dtype}: give whole numbers, such as int32"
        )
    if not stored or isinstance(codebook.neighbours, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    with jax.ensure_compile_time_eval():
        low, high = int(codebook.neighbours.min()), int(codebook.neighbours.max())
    if low < -1 or high >= rows:
        raise LanternError(
            f"the neighbour table holds ids from {low} to {high}: give -1 (none) to {rows - 1}"
        )


def code_distance(
    codebook: Codebook, left: Int[Array, "*rows"], right: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Returns the Euclidean distance between codes."""
    difference = codebook.codes[left] - codebook.codes[right]
    return jnp.sqrt(jnp.sum(difference * difference, axis=-1)).astype(jnp.float32)


def as_rule(rule: Any) -> Rule:
    """Returns a rule, or the one that a text describes, with its numbers as arrays; raises LanternError otherwise."""
    return with_arrays(RULES.checked(rule))


def with_arrays(rule: Rule) -> Rule:
    """Returns a rule with its traced numbers as 32-bit arrays, so that other numbers reuse a compiled program."""
    dtypes = {float: np.float32, int: np.int32}
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtypes[type(leaf)]) if type(leaf) in dtypes else leaf, rule
    )
