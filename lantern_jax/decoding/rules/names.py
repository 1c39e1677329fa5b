"""Rules made from their names."""

from lantern_jax.decoding.acceptance import Rule
from lantern_jax.decoding.rules.table import RULES, checked
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError


def rule_from_name(
    name: str,
    k: int | None = None,
    delta: float | None = None,
    lam: float | None = None,
    vocab_size: int | None = None,
    **knobs: float | None,
) -> Rule:
    """Returns the rule with this name, made from Python numbers; None stands for the knob's default.

    Args:
        name: one of ``RULES``.
        k, delta, lam: the number of neighbours, and bounds; what they bound depends on the rule.
        vocab_size: V; k must be below it.
        knobs: the rule's other knobs; those that only other rules have are ignored.

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


def as_rule(rule: Rule | str) -> Rule:
    """Returns the rule with this name and default bounds, or the rule itself; raises LanternError for anything else."""
    if isinstance(rule, str):
        return rule_from_name(rule)
    if not isinstance(rule, Rule):
        raise LanternError(
            f"rule {errors.quoted(rule)} is not valid: give a Rule or one of {', '.join(RULES)}"
        )
    return rule
