"""Every exact way of decoding against the enumerated law of a chain, with enough samples to see small faults.

    pytest tests/decoding/test_laws.py -m exhaustive -s

prints a p-value per way of decoding. A law that is 0.009 off in total variation, as block verification's was over
guesses that it had looked at before, is told from the right one; with the 20,000 samples of other tests it is not.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.block import Block
from lantern_jax.decoding.couplings import as_coupling
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.jacobi import Window, jacobi, pac, speculative_jacobi
from lantern_jax.decoding.drafting.led import led_window
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.echo import Echo
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.rejection import Streams
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, DynamicTree

from . import toy_models as toys
from .enumerated_chain import LENGTH, VOCAB, agreement_of_counts, counts, exact_distribution
from .test_drafter_kinds import on_chain

SAMPLES, AT_ONCE = 327_680, 32_768
LEAST = 1e-4
CHAIN, BUSH = DraftTree.chain(3), toys.BUSHY
GROWN = DynamicTree(5, 3, frontier=2, children=2)
# At half of all rounds; at 0.5 it would never.
STOPPED = DynamicTree(5, 3, frontier=2, children=2, threshold=0.7, checks=(1, 2))
GAPS = DynamicTree(5, 3, frontier=2, children=2, ranking="gap")
# A share of 0 for the drafter, and for what the target said.
EXTREME = Echo(position=(0.0, 1.0), token=(0.5, 0.5), parent=(0.0, 0.0))


@dataclass(frozen=True)
class Way:
    """A way of decoding; ``tree`` and ``echo`` are for a drafter that is a noisy copy of the target."""

    coupling: Any
    drafting: Any = None
    tree: Any = None
    echo: Echo | None = None
    kind: str | None = None


def window(redraw, width=3, initial="left"):
    return speculative_jacobi(VOCAB, width, redraw, initial, 2)


WAYS = {
    "ar": Way("gumbel", PLAIN),
    "gumbel": Way("gumbel", tree=BUSH),
    "led": Way("gumbel", Window(VOCAB, CHAIN)),
    "echo": Way("gumbel", tree=GAPS, echo=Echo()),
    "jacobi": Way("gumbel", jacobi(VOCAB, 3)),
    "eagle chain": Way("rejection", tree=CHAIN),
    "eagle": Way("rejection", tree=BUSH),
    "eagle, echo": Way("rejection", tree=BUSH, echo=Echo()),
    "eagle, extreme echo": Way("rejection", tree=CHAIN, echo=EXTREME),
    "eagle2": Way("rejection", tree=GROWN),
    "ddd": Way("rejection", tree=STOPPED),
    "eagle3": Way("rejection", tree=BUSH, kind="eagle3"),
    "medusa": Way("rejection", tree=BUSH, kind="medusa"),
    "parallelspec": Way("rejection", tree=BUSH, kind="parallel"),
    "block": Way("block", tree=CHAIN),
    "block, echo": Way("block", tree=CHAIN, echo=Echo()),
    "block, extreme echo": Way("block", tree=CHAIN, echo=EXTREME),
    "block, window": Way("block", window("independent")),
    "block, window, repeat": Way("block", window("independent", 4, "repeat")),
    "block, window, mixed": Way("block", window("independent", 3, "mixed")),
    "sjd": Way("rejection", window("independent", 3, "random")),
    "scd": Way("rejection", window("maximal")),
    "scd, repeat": Way("rejection", window("maximal", 3, "repeat")),
    "scd, above": Way("rejection", window("maximal", 2, "above")),
    "shared": Way("rejection", window("shared", 4)),
    "shared, mixed": Way("rejection", window("shared", 2, "mixed")),
    "pac": Way("rejection", pac(VOCAB, 3, 2, 2)),
    "pac, all codes": Way("rejection", pac(VOCAB, 4, 3, 1, "maximal", "repeat")),
    "pac, independent": Way("rejection", pac(VOCAB, 3, 2, 2, "independent")),
    "pac, shared": Way("rejection", pac(VOCAB, 2, 2, 2, "shared")),
}
FILTERED = {"temperature": 0.9, "top_k": 2, "top_p": 0.9}
# Of the chain, the seed; what is forced; the sampling distribution.
LAWS = {
    "one chain": (0, None, {}),
    "another": (1, None, {}),
    "forced": (1, (-1, 1, 0, -1, -1), {}),
    "filtered": (0, None, FILTERED),
}


@cache
def chain_params(seed):
    """Makes a chain whose tokens depend so much on earlier ones that nearly right is far off."""
    return toys.markov_params(VOCAB, seed) * jnp.float32(1.5)


def pieces(way: Way, law: str):
    """Makes the target, its parameters, the drafting and its parameters."""
    seed, forced, _ = LAWS[law]
    target, params, conditioning = (
        toys.markov_target(VOCAB, LENGTH, forced),
        chain_params(seed),
        jnp.zeros((AT_ONCE, 1)),
    )
    noisy = toys.noisy_params(params, conditioning, 0.7)
    if way.kind is not None:
        target, drafter, noisy = on_chain(way.kind, target)
        return target, params, eagle(drafter, way.tree), noisy
    if isinstance(way.drafting, Window):
        return target, params, led_window(toys.noisy_drafter(target), way.drafting, 2), noisy
    if way.drafting is not None:
        return target, params, way.drafting, None
    return target, params, eagle(toys.noisy_drafter(target), way.tree, way.echo), noisy


def p_value(way: Way, law: str) -> float:
    target, params, drafting, drafting_params = pieces(way, law)
    sampling = LAWS[law][2]
    observed, key = 0, jax.random.key(11)
    accepted = 0
    for start in range(0, SAMPLES, AT_ONCE):
        numbers = jnp.arange(start, start + AT_ONCE, dtype=jnp.int32)
        decoded = speculative_decode(
            target, params, jnp.zeros((AT_ONCE, 1)), jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers),
            drafting=drafting, drafting_params=drafting_params, coupling=way.coupling,
            sampling=SamplingParams.create(**sampling),
        )  # fmt: skip
        observed = observed + counts(decoded.tokens)
        accepted += int(decoded.accepted[:, 1:].sum())
    assert observed.sum() == SAMPLES and (accepted > SAMPLES // 50 or drafting is PLAIN)
    forced = LAWS[law][1] or (-1,) * LENGTH
    return agreement_of_counts(observed, exact_distribution(params, forced, **sampling))


@pytest.mark.exhaustive
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", WAYS)
def test_tokens_follow_the_exact_law(name, law):
    p = p_value(WAYS[name], law)
    print(f"\n{name}, {law}: p = {p:.3g}")
    assert p > LEAST


@dataclass(frozen=True)
class Forgetful(Block):
    """Block verification that does not say what its tests read: a window keeps guesses that they have looked at."""

    def draws(self, keys, positions, rounds, levels, vocab_size, sampling):
        return Streams(keys, positions, rounds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("redraw", ["maximal", "shared"])
def test_a_small_fault_is_seen(redraw):
    worst = min(p_value(Way(Forgetful(), window(redraw)), law) for law in ("one chain", "another"))
    print(f"\nblock over {redraw}: p = {worst:.3g}")
    assert worst < 1e-6


@pytest.mark.parametrize("redraw", ["maximal", "shared"])
def test_block_refuses_windows_that_keep_what_it_has_looked_at(redraw):
    def decode(coupling, temperature):
        return speculative_decode(
            toys.markov_target(VOCAB, LENGTH), chain_params(0), jnp.zeros((2, 1)), toys.sequence_keys(0, 2),
            drafting=window(redraw), coupling=coupling, sampling=SamplingParams.create(temperature),
        )  # fmt: skip

    with pytest.raises(ValueError, match=f"redraw '{redraw}' keeps: give redraw 'independent'") as error:
        decode(as_coupling("block"), 1.0)
    assert "\n" not in str(error.value)
    assert np.asarray(decode(as_coupling("block"), 0.0).finite).all()
