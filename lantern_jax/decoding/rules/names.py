"""The acceptance rules by name, with the knobs of each: defaults and ranges stand here alone. Needs no JAX.

A new rule is a file with a subclass of ``Rule`` and an entry of ``RULES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lantern_jax.decoding.knobs import Knob
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import Late, Table, at

if TYPE_CHECKING:
    from lantern_jax.decoding.acceptance import Rule

COUPLINGS_OF_RULES = ("gumbel", "rejection")


@dataclass(frozen=True, eq=False)
class RuleKind(Late):
    """A rule that has a name.

    Attributes:
        make: the knobs' values as keyword arguments -> the rule; of a ``Rule`` its ``create``.
        knobs: its knobs, which are settings of every generation too.
        inner: knobs of ``make`` that are no settings.
        couplings: names of those it goes with.

    Example:
        >>> kind = lantern_jax.RuleKind(lambda: lantern_jax.Strict(), couplings=("gumbel",))
        >>> kind.make().is_strict, kind.knobs
        (True, ())
    """

    make: Callable[..., "Rule"]
    knobs: tuple[Knob, ...] = ()
    inner: tuple[Knob, ...] = ()
    couplings: tuple[str, ...] = COUPLINGS_OF_RULES


# A mild relaxation.
K = Knob("k", int, 10, "codebook neighbours of lantern, lantern++ and cool", "K")

RULES: Table[RuleKind] = Table(
    "rule",
    {
        "strict": RuleKind(
            at("lantern_jax.decoding.acceptance:Strict.create"), couplings=(*COUPLINGS_OF_RULES, "block")
        ),
        "lantern": RuleKind(
            at("lantern_jax.decoding.acceptance:Lantern.create"),
            (K, Knob("delta", float, 0.05, "bound of lantern", "D", high=1, high_open=True)),
        ),
        "lantern++": RuleKind(
            at("lantern_jax.decoding.acceptance:LanternPlusPlus.create"),
            (K, Knob("lam", float, 2.0, "bound of lantern++", "L", low=1, note="1 is strict")),
        ),
        "near": RuleKind(
            at("lantern_jax.decoding.rules.near:Near.create"),
            (
                Knob(
                    "tau", float, 1.5, "how far near reaches, in distances to the nearest code", "T",
                    note="0 is strict",
                ),
                Knob("ratio", float, 10.0, "how much less probable than the wanted code near accepts", "R", low=1),
            ),
            couplings=("gumbel",),
        ),
        "typical": RuleKind(
            at("lantern_jax.decoding.rules.typical:Typical.create"),
            (Knob("epsilon", float, 0.09, "probability that typical always accepts", "E", low_open=True, high=1),),
            # The paper takes the root of epsilon.
            (Knob("delta_factor", float, 0.3, ""),),
            ("gumbel",),
        ),
        "tolerance": RuleKind(
            at("lantern_jax.decoding.rules.typical:Tolerance.create"),
            (
                Knob("samples", int, 2, "samples of the target that tolerance accepts", "N", low=1, note="1 is strict"),
            ),
            couplings=("gumbel",),
        ),
        "cool": RuleKind(
            at("lantern_jax.decoding.rules.cool:Cool.create"),
            (Knob("omega", float, 1.1, "mean relaxation of cool", "O", low=1), K),
        ),
        "gsd": RuleKind(
            at("lantern_jax.decoding.rules.grouped:Grouped.create"),
            inner=(
                Knob("p_gap", float, 0.15, "", low_open=True),
                Knob("squared_distance", float, 0.5, "", low_open=True),
                Knob("size", int, 14, "", low=1, note="1 is strict"),
            ),
        ),
    },
)  # fmt: skip


def register_rule(name: str, kind: RuleKind) -> None:
    """Makes a rule of another package known by name; its knobs become settings.

    Raises:
        LanternError: a name that is taken or not valid.

    Example:
        >>> lantern_jax.register_rule("near", lantern_jax.RuleKind(lantern_jax.Near.create))
        Traceback (most recent call last):
        lantern_jax.io.errors.LanternError: there is a rule near already: give yours another name
    """
    RULES.add(name, kind)


def knobs_of(name: str) -> tuple[Knob, ...]:
    """Returns all knobs of a rule of this package."""
    return RULES[name].knobs + RULES[name].inner


def rule_knobs() -> dict[str, Knob]:
    """Returns the knobs of all rules that are settings, by name."""
    return {knob.name: knob for kind in RULES.values() for knob in kind.knobs}


def rule_from_name(
    name: str,
    k: int | None = None,
    delta: float | None = None,
    lam: float | None = None,
    vocab_size: int | None = None,
    **knobs: float | None,
) -> "Rule":
    """Returns the rule of a name, made of Python numbers; None is the knob's default.

    Args:
        name: one of ``RULES``.
        k, delta, lam: neighbours and bounds: what they bound is the rule's matter.
        vocab_size: V, which k must stay under.
        knobs: the rule's other ones; those that only other rules have are not read.

    Raises:
        LanternError: an unknown name or knob, or a number outside the knob's range.

    Example:
        >>> rule = lantern_jax.rule_from_name("lantern++", k=10, lam=3.0)
        >>> type(rule).__name__, float(rule.lam)
        ('LanternPlusPlus', 3.0)
    """
    kind = RULES.find(name)
    known = {knob.name for each in RULES.values() for knob in each.knobs + each.inner}
    for knob in knobs:
        if knob not in known:
            raise LanternError(
                f"no rule has a knob {errors.quoted(knob)}: choose from {', '.join(sorted(known))}"
            )
    given = {**knobs, "k": k, "delta": delta, "lam": lam}
    rule = kind.make(**checked(kind.knobs + kind.inner, given))
    if vocab_size is not None and rule.k >= vocab_size:
        raise errors.invalid("k", rule.k, f"a whole number >= 0 and < {vocab_size}, the number of codes")
    return rule


def checked(knobs: tuple[Knob, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the value of every knob, its default for None; raises LanternError for one out of range."""
    values = {}
    for knob in knobs:
        value = given.get(knob.name)
        values[knob.name] = knob.default if value is None else value
        knob.check(values[knob.name])
    return values
