"""Strict decoding on the shared noise gives plain decoding's tokens however often the drafting is switched."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import DraftTree, Window, autoregressive_decode, eagle, jacobi, led_window
from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Strict
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.program import Inputs, Program
from lantern_jax.decoding.sampling import SamplingParams
from tests.decoding import toy_models as toys

# All have one depth, so that one cache has room for each; plain decoding needs less.
DEPTH = 4


@cache
def all_ways() -> tuple[Program, ...]:
    target, drafter = toys.llamagen(), toys.copy_drafter()
    tree = DraftTree.window(DEPTH)
    draftings = (
        jacobi(toys.VOCAB, DEPTH), led_window(drafter, Window(toys.VOCAB, tree), 2), PLAIN,
        jacobi(toys.VOCAB, DraftTree.window(DEPTH, 2, 1)), eagle(drafter, tree),
    )  # fmt: skip
    return tuple(Program(target, drafting) for drafting in draftings)


@partial(jax.jit, static_argnums=0)
def begun(program: Program, inputs: Inputs):
    return loop.start(program, inputs)


@partial(jax.jit, static_argnums=0)
def advanced(program: Program, inputs: Inputs, state, rounds):
    return loop.advance(program, inputs, state, rounds)


@pytest.mark.parametrize(("number", "count"), [(3, 8), pytest.param(5, 200, marks=pytest.mark.exhaustive)])
def test_switching_the_drafting_at_every_piece_keeps_the_tokens(number, count):
    """Each way resumes from its own last drafting state, which knows nothing of what the others did meanwhile."""
    rng, params, batch, ways = np.random.default_rng(0), toys.target_params(), 8, all_ways()[:number]
    noisy = toys.noisy_params(params, toys.conditioning(batch), 0.7)
    used = set()
    for seed in range(count // batch):
        keys, conditioning = toys.sequence_keys(seed, batch), toys.conditioning(batch)
        plain = autoregressive_decode(toys.llamagen(), params, conditioning, keys)
        common = None, jnp.ones(batch, bool), SamplingParams.create(vocab_size=toys.VOCAB), Strict(), None
        inputs = Inputs(params, noisy, conditioning, keys, *common)
        states = [begun(program, inputs) for program in ways]
        state, before = states[0], None
        while not bool((state.length >= ways[0].target.num_tokens).all()):
            way = int(rng.choice([other for other in range(len(ways)) if other != before]))
            # The counts of rounds that accepted 0, 1, ... tokens have columns by a way's depth; nothing reads them.
            accepted = states[way].decoded.accepted
            decoded = state.decoded.replace(accepted=accepted)
            state = state.replace(drafting=states[way].drafting, decoded=decoded)
            state = states[way] = advanced(ways[way], inputs, state, jnp.int32(rng.integers(1, 4)))
            before = way
            used.add(way)
        np.testing.assert_array_equal(state.decoded.tokens, plain.tokens)
        assert bool((state.decoded.rounds < ways[0].target.num_tokens).all())
    assert len(used) == len(ways)
