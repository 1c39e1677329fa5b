"""The acceptance rules by name, with the knobs of each; defaults and ranges are defined only here. Needs no JAX.

A new rule is a file with a subclass of ``Rule`` and an entry in ``RULES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.decoding.knobs import Knob
from lantern_jax.io.plugins import Late, Table, at

COUPLINGS_OF_RULES = ("gumbel", "rejection")


@dataclass(frozen=True, eq=False)
class RuleKind(Late):
    """A named rule.

    Attributes:
        make: the knobs' values as keyword arguments -> the rule; for a ``Rule``, its ``create``.
        knobs: its knobs that are also settings of every generation.
        inner: knobs of ``make`` that are not settings.
        couplings: names of the couplings it works with; empty for all.

    Example:
        >>> kind = lantern_jax.RuleKind(lambda: lantern_jax.Strict(), couplings=("gumbel",))
        >>> kind.make().is_strict, kind.knobs
        (True, ())
    """

    make: Callable[..., Any]
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
            # The paper takes the square root of epsilon.
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
    wrap=at("lantern_jax.decoding.rules.own:kind_of"),
)  # fmt: skip


def register_rule(name: str, kind: RuleKind) -> None:
    """Registers a rule of another package by name; its knobs become settings.

    Raises:
        LanternError: a name that is taken or not valid.

    Example:
        >>> lantern_jax.register_rule("near", lantern_jax.RuleKind(lantern_jax.Near.create))
        Traceback (most recent call last):
        lantern_jax.io.errors.LanternError: there is a rule near already: give yours another name
    """
    RULES.add(name, kind)


def knobs_of(name: str) -> tuple[Knob, ...]:
    """Returns all knobs of one of this package's rules."""
    return RULES[name].knobs + RULES[name].inner


def rule_knobs() -> dict[str, Knob]:
    """Returns the knobs of all rules that are settings, by name."""
    return {knob.name: knob for kind in RULES.values() for knob in kind.knobs}


def checked(knobs: tuple[Knob, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the value of every knob, its default for None; raises LanternError for a value out of range."""
    values = {}
    for knob in knobs:
        value = given.get(knob.name)
        values[knob.name] = knob.default if value is None else value
        knob.check(values[knob.name])
    return values
