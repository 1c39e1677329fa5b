"""What a tuning makes of its confirming run."""

from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.apps.measuring import tune
from lantern_jax.apps.measuring.choose import PLAIN, Budget, Candidate, Goal
from lantern_jax.apps.measuring.costs import Costs
from lantern_jax.apps.measuring.subject import Decodings
from lantern_jax.engine.generation import Timing

TOKENS = 100


def decoded(seconds, substituted=(0.0, 0.0), distance=0.0):
    rounds, timing = np.full(2, 50), Timing(decoding=seconds)
    return Decodings(np.zeros((2, TOKENS), int), rounds, np.array(substituted), distance, timing)


def confirmed(budget, given, estimated=0.01):
    """Returns the tuning of plain decoding and a relaxed candidate with estimated substitutions, after confirming."""
    tuner = object.__new__(tune.Tuner)
    relaxed = Candidate(
        "near", {"rule": "near"}, 8, np.full(2, 40), 2.0, np.full(64, estimated), 0.1, predicted=(2, 0)
    )
    plain = Candidate(PLAIN, {"method": "ar"}, 1, np.full(2, 99), 1.0, predicted=(1, 0))
    vars(tuner).update(
        plan=Goal(budget=budget), key=None, tokens=TOKENS, settings=SimpleNamespace(batch=2), default=plain,
        found=[plain, relaxed], given={PLAIN: [decoded(2.0)] * len(given), "near": given}, is_stopped=False,
        costs=Costs({}), statistics={}, subject=SimpleNamespace(prompts=2), clock=SimpleNamespace(spent=0.0),
    )  # fmt: skip
    return tuner._tuning()


@pytest.mark.parametrize(("shares", "estimated", "name"), [
    ((0.04, 0.04), 0.01, "near"), ((0.06, 0.06), 0.01, PLAIN), ((0.01, 0.01), 0.06, PLAIN)
])  # fmt: skip
def test_a_relaxed_rule_is_written_only_if_the_confirming_pictures_keep_to_the_budget_too(
    shares, estimated, name
):
    found = confirmed(Budget(substituted=0.05), [decoded(1.0, shares)] * 2, estimated).tuned
    assert found.name == name and found.substituted == (shares[0] if name == "near" else 0)


def test_a_distance_is_the_mean_over_substitutions():
    """A batch without substitutions says nothing about it."""
    given = [decoded(1.0), decoded(1.0, (0.01, 0.0), 0.9), decoded(1.0, (0.02, 0.01), 0.5)]
    (relaxed,) = (row for row in confirmed(Budget(1.0), given).rows if row.name == "near")
    assert relaxed.distance == pytest.approx((0.9 + 3 * 0.5) / 4)
    assert confirmed(Budget(1.0), [decoded(1.0)] * 2).rows[0].distance == 0
