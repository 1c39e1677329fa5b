"""Rules: which guesses are accepted in place of the codes that plain decoding would take.

Each has a name in ``METHODS`` and ``rule=``, as in ``rule="near:tau=1"``; a class of your own derives from ``Rule``.
"""

from lantern_jax.decoding.acceptance import Claim, Lantern, LanternPlusPlus, Loan, Probabilities, Rule, Strict
from lantern_jax.decoding.rules.cool import Cool
from lantern_jax.decoding.rules.grouped import Grouped
from lantern_jax.decoding.rules.near import Near
from lantern_jax.decoding.rules.typical import Tolerance, Typical

__all__ = [
    "Claim",
    "Cool",
    "Grouped",
    "Lantern",
    "LanternPlusPlus",
    "Loan",
    "Near",
    "Probabilities",
    "Rule",
    "Strict",
    "Tolerance",
    "Typical",
]
