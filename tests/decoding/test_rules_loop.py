"""Relaxed rules over whole generations: on one device and on several, with forced tokens kept and the cost counted."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import DraftTree, SamplingParams, speculative_decode
from lantern_jax.draftings import eagle
from tests.cases import exhaustive, slow

from . import toy_models as toys

VOCAB, LENGTH, BATCH = 12, 20, 16
FORCED = tuple(11 if i in (6, 13, 19) else -1 for i in range(LENGTH))
TREE = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])
CODEBOOK = toys.random_codebook(VOCAB, 2, 6, seed=0, outside=1)
RULES = {
    "near": "near:tau=1.5", "tolerance": "tolerance:samples=3", "cool": "cool:omega=2,k=4",
    "gsd": "gsd:size=8,squared_distance=4",
}  # fmt: skip


@cache
def decode(rule, coupling, spread=False, greedy=False):
    target, params = toys.markov_target(VOCAB, LENGTH, FORCED), toys.markov_params(VOCAB)
    conditioning, tree = jnp.zeros((BATCH, 1)), DraftTree.chain(3) if coupling == "block" else TREE
    decoded = speculative_decode(
        target, params, conditioning, toys.sequence_keys(1, BATCH), guidance=jnp.full(BATCH, 2.0),
        drafting=eagle(toys.noisy_drafter(target), tree), coupling=coupling, codebook=CODEBOOK,
        rule=RULES.get(rule, rule),
        drafting_params=toys.noisy_params(params, conditioning, 1.5),
        sampling=SamplingParams.create(0.0) if greedy else SamplingParams.create(0.9, 9, 0.98),
        mesh=jax.make_mesh((8,), ("data",)) if spread else None,
    )  # fmt: skip
    return jax.tree.map(np.asarray, decoded)


# A rule that accepts, one that lends, and one with the other coupling; the rest are of these kinds.
@pytest.mark.parametrize(
    ("rule", "coupling"),
    [
        ("near", "gumbel"), slow("gsd", "gumbel"), slow("cool", "rejection"),
        *(exhaustive(name, "gumbel") for name in ("typical", "tolerance", "cool")),
    ],
)  # fmt: skip
def test_relaxing_saves_rounds_and_reports_its_cost(rule, coupling):
    strict, relaxed = decode("strict", coupling), decode(rule, coupling)
    assert relaxed.rounds.sum() < strict.rounds.sum()
    assert relaxed.substituted.sum() > 0 and strict.substituted.sum() == 0
    assert relaxed.finite.all()
    ends = np.array(FORCED) >= 0
    assert (relaxed.tokens[:, ends] == VOCAB - 1).all()
    mean = relaxed.distance.sum() / relaxed.substituted.sum()
    assert mean > 0
    if rule == "near":
        assert mean <= 1.5 * float(CODEBOOK.measured().spacing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "coupling"),
    [
        ("near", "gumbel"),
        exhaustive("cool", "rejection"),
        exhaustive("strict", "block"),
    ],
)
def test_several_devices_decode_as_one(rule, coupling):
    """Each device stops with its own sequences: the rounds, which differ, are those of a batch on one device."""
    alone, spread = (decode(rule, coupling, spread) for spread in (False, True))
    np.testing.assert_allclose(spread.distance, alone.distance, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, spread.replace(distance=alone.distance), alone)
    assert len(np.unique(alone.rounds)) > 1, "all sequences took the same number of rounds"


# A rule that accepts and one that lends; the others are of these two kinds.
@pytest.mark.parametrize("rule", ["near", slow("gsd")])
def test_at_temperature_zero_both_couplings_agree(rule):
    decoded, strict = (decode(name, "gumbel", greedy=True) for name in (rule, "strict"))
    assert decoded.finite.all() and decoded.rounds.sum() <= strict.rounds.sum()
    if rule == "gsd":
        jax.tree.map(np.testing.assert_array_equal, decode(rule, "rejection", greedy=True), decoded)
