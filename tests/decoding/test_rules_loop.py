"""Relaxed rules over whole generations: on one device and on several, forced tokens kept, its cost counted."""

from functools import cache

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.acceptance import Codebook, Rule
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.decoding.rules.names import rule_from_name
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

VOCAB, LENGTH, BATCH = 12, 20, 16
FORCED = tuple(11 if i in (6, 13, 19) else -1 for i in range(LENGTH))
TREE = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])
KNOBS = {
    "near": {"tau": 1.5},
    "typical": {},
    "tolerance": {"samples": 3},
    "cool": {"omega": 2.0, "k": 4},
    "gsd": {"size": 8, "squared_distance": 4.0},
}
COMBINATIONS = [
    *((name, "gumbel") for name in KNOBS),
    ("cool", "rejection"),
    pytest.param("gsd", "rejection", marks=pytest.mark.exhaustive),
]


@cache
def codebook():
    codes = np.random.default_rng(0).standard_normal((VOCAB, 2)).astype(np.float32)
    table = np.array(nearest_codes(jnp.asarray(codes[:-1]), 6))
    return Codebook(jnp.asarray(np.concatenate([table, np.full((1, 6), -1, np.int32)])), jnp.asarray(codes))


@cache
def decode(rule, coupling, spread=False, greedy=False):
    target, params = toys.markov_target(VOCAB, LENGTH, FORCED), toys.markov_params(VOCAB)
    conditioning = jnp.zeros((BATCH, 1))
    decoded = speculative_decode(
        target, params, conditioning, toys.sequence_keys(1, BATCH), guidance=jnp.full(BATCH, 2.0),
        drafting=eagle(toys.noisy_drafter(target), TREE), coupling=coupling, codebook=codebook(),
        rule=rule_from_name(rule, **KNOBS.get(rule, {})),
        drafting_params=toys.noisy_params(params, conditioning, 1.5),
        sampling=SamplingParams.create(0.0) if greedy else SamplingParams.create(0.9, 9, 0.98),
        mesh=jax.make_mesh((8,), ("data",)) if spread else None,
    )  # fmt: skip
    return jax.tree.map(np.asarray, decoded)


@pytest.mark.parametrize(("rule", "coupling"), COMBINATIONS)
def test_relaxing_saves_rounds_and_says_what_it_costs(rule, coupling):
    strict, relaxed = decode("strict", coupling), decode(rule, coupling)
    assert relaxed.rounds.sum() < strict.rounds.sum()
    assert relaxed.substituted.sum() > 0 and strict.substituted.sum() == 0
    assert relaxed.finite.all()
    ends = np.array(FORCED) >= 0
    assert (relaxed.tokens[:, ends] == VOCAB - 1).all()
    mean = relaxed.distance.sum() / relaxed.substituted.sum()
    assert mean > 0
    if rule == "near":
        assert mean <= 1.5 * float(codebook().measured().spacing)


# The shared noise on several devices is in test_loop.py too.
@pytest.mark.parametrize(
    ("rule", "coupling"),
    [
        ("cool", "rejection"),
        pytest.param("near", "gumbel", marks=pytest.mark.exhaustive),
        pytest.param("gsd", "rejection", marks=pytest.mark.exhaustive),
    ],
)
def test_several_devices_decode_as_one(rule, coupling):
    jax.tree.map(np.testing.assert_array_equal, decode(rule, coupling, spread=True), decode(rule, coupling))


@flax.struct.dataclass
class Measured(Rule):
    """Refuses a codebook that a round would have to measure."""

    def accepts(self, p, token, wanted, depth, codebook):
        assert codebook.spacing is not None
        return token == wanted


def test_the_codebook_is_measured_before_the_first_round():
    target, params = toys.markov_target(VOCAB, LENGTH, FORCED), toys.markov_params(VOCAB)
    conditioning = jnp.zeros((2, 1))
    speculative_decode(
        target, params, conditioning, toys.sequence_keys(1, 2), rule=Measured(), codebook=codebook(),
        drafting=eagle(toys.noisy_drafter(target), DraftTree.chain(1)),
        drafting_params=toys.noisy_params(params, conditioning, 1.5),
    )  # fmt: skip


# A rule that accepts and one that lends; the others are of these two kinds.
@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=() if rule in ("near", "gsd") else pytest.mark.exhaustive) for rule in KNOBS],
)
def test_at_temperature_zero_both_couplings_are_one(rule):
    decoded = decode(rule, "gumbel", greedy=True)
    assert (
        decoded.finite.all() and decoded.rounds.sum() <= decode("strict", "gumbel", greedy=True).rounds.sum()
    )
    if rule in ("cool", "gsd"):
        jax.tree.map(np.testing.assert_array_equal, decode(rule, "rejection", greedy=True), decoded)
