"""Acceptance rules with an idea of their own, and the table of all rules by name."""

from collections.abc import Mapping

from lantern_jax.decoding.acceptance import Lantern, LanternPlusPlus, Rule, Strict
from lantern_jax.decoding.rules.cool import Cool
from lantern_jax.decoding.rules.grouped import Grouped
from lantern_jax.decoding.rules.near import Near
from lantern_jax.decoding.rules.typical import Tolerance, Typical

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
