"""The acceptance rules by name."""

from collections.abc import Mapping

from lantern_jax.decoding.acceptance import Lantern, LanternPlusPlus, Rule, Strict
from lantern_jax.decoding.rules.cool import Cool
from lantern_jax.decoding.rules.grouped import Grouped
from lantern_jax.decoding.rules.near import Near
from lantern_jax.decoding.rules.typical import Tolerance, Typical
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

RULES: Mapping[str, type[Rule]] = {
    "strict": Strict,
    "lantern": Lantern,
    "lantern++": LanternPlusPlus,
    "near": Near,
    "typical": Typical,
    "tolerance": Tolerance,
    "cool": Cool,
    "gsd": Grouped,
}
RULE_NAMES = tuple(RULES)


def rule_from_name(
    name: str,
    k: int | None = None,
    delta: float | None = None,
    lam: float | None = None,
    vocab_size: int | None = None,
    **knobs: float | None,
) -> Rule:
    """The rule of a name, made of Python numbers; None is the rule's own default.

    Args:
        name: one of ``RULE_NAMES``.
        k, delta, lam: neighbours and bounds: what they bound is the rule's matter.
        vocab_size: V, which k must stay under.
        knobs: the rule's other ones; those that only other rules have are not read.

    Raises:
        ValueError: an unknown name or knob, or a number outside the rule's range.

    Example:
        >>> rule = lantern_jax.rule_from_name("lantern++", k=10, lam=3.0)
        >>> type(rule).__name__, float(rule.lam)
        ('LanternPlusPlus', 3.0)
    """
    if name not in RULE_NAMES:
        raise errors.unknown("rule", name, RULE_NAMES)
    known = {knob for rule in RULES.values() for knob in rule.knobs}
    for knob in knobs:
        if knob not in known:
            raise LanternError(
                f"no rule has a knob {errors.quoted(knob)}: choose from {', '.join(sorted(known))}"
            )
    given = {**knobs, "k": k, "delta": delta, "lam": lam}
    kind = RULES[name]
    rule = kind.create(**{knob: given[knob] for knob in kind.knobs if given.get(knob) is not None})
    if vocab_size is not None and rule.k >= vocab_size:
        raise LanternError(
            f"k = {rule.k} neighbours is not valid: give a whole number < {vocab_size}, the number of codes"
        )
    return rule


def as_rule(rule: Rule | str) -> Rule:
    """A rule from its name, with default bounds, or the rule itself; ValueError for anything else."""
    if isinstance(rule, str):
        return rule_from_name(rule)
    if not isinstance(rule, Rule):
        raise LanternError(
            f"rule {errors.quoted(rule)} is not valid: give a Rule or one of {', '.join(RULE_NAMES)}"
        )
    return rule
