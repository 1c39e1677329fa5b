"""The loop: devices, batches, forced tokens, what is compiled, what is refused."""

import contextlib
import dataclasses
import re
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import DraftTree, SamplingParams, gumbel_noise
from lantern_jax.couplings import Gumbel
from lantern_jax.decoding import loop
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.program import Inputs, Program
from lantern_jax.decoding.stream import Decoded, Stream
from lantern_jax.decoding.verification import Verification
from lantern_jax.draftings import eagle, jacobi
from lantern_jax.rules import LanternPlusPlus
from tests.cases import exhaustive
from tests.refused import refused

from . import toy_models as toys


def explicit_mesh():
    return jax.make_mesh((4, 2), ("pictures", "other"))


def on_explicit_mesh(leaf, *spec):
    return jax.device_put(leaf, jax.NamedSharding(explicit_mesh(), jax.P(*spec)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["laid out", *map(exhaustive, ("elsewhere", "set"))],
)
def test_any_mesh_will_do(where):
    """A mesh of several explicit axes with other names, even one that the caller has already set."""
    target, params, conditioning = toys.stream("chain", 8)
    given = {
        "target": target, "target_params": params, "conditioning": conditioning, "keys": toys.sequence_keys(0, 8),
        "drafting": jacobi(toys.VOCAB, 3), "mesh": explicit_mesh(), "mesh_axis": "pictures",
    }  # fmt: skip
    if where == "laid out":
        given |= {name: on_explicit_mesh(given[name], "pictures") for name in ("conditioning", "keys")}
    with jax.set_mesh(explicit_mesh()) if where == "set" else contextlib.nullcontext():
        made = speculative_decode(**given)
    np.testing.assert_array_equal(made.tokens, toys.decode(name="chain", guided=False).tokens)


def test_the_loop_runs_under_the_callers_own_shard_map():
    """With JAX's checks of what varies over the mesh enabled. (Accept tests alone: test_verification.py.)"""
    target, params = toys.markov_target(10, 17, FORCED), toys.markov_params(10)
    drafting = eagle(toys.noisy_drafter(target), DraftTree.chain(2))
    rows = jax.sharding.PartitionSpec("data")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    given = jnp.zeros((16, 1)), toys.sequence_keys(0, 16)

    def decode_here(conditioning, keys):
        noisy = toys.noisy_params(params, conditioning, 0.5)
        return speculative_decode(
            target, params, conditioning, keys, drafting=drafting, drafting_params=noisy
        )

    sharded = jax.jit(jax.shard_map(decode_here, mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    expected = autoregressive_decode(target, params, *given).tokens
    np.testing.assert_array_equal(sharded(*given).tokens, expected)


def test_a_generation_in_pieces_equals_the_whole_one():
    """Pieces of one to four rounds until all is done, and beyond: a finished sequence no longer changes."""
    drafter, drafter_params = toys.random_drafter()
    program = Program(toys.llamagen(), eagle(drafter, DraftTree.chain(2)), Gumbel())
    inputs = Inputs(
        toys.target_params(), drafter_params, toys.conditioning(3), toys.sequence_keys(0, 3),
        jnp.full(3, 2.5), jnp.asarray([True, True, False]), SamplingParams.create(), loop.as_rule("strict"), None,
    )  # fmt: skip
    whole = jax.jit(loop.decode, static_argnums=0)(program, inputs)
    step = jax.jit(loop.advance, static_argnums=0)
    state = jax.jit(loop.start, static_argnums=0)(program, inputs)
    lengths = [state.length]
    for pieces in range(40):
        state = step(program, inputs, state, jnp.int32(1 + pieces % 4))
        lengths.append(state.length)
    jax.tree.map(np.testing.assert_array_equal, loop.finish(inputs.active, state), whole)
    grown = np.diff(np.asarray(lengths)[:, 0])
    assert (grown[:3] > 0).all() and (grown[-3:] == 0).all()


# Every row ends in a forced id, the second row in two; the stream ends in one too.
FORCED = tuple(8 if i == 8 else 9 if i % 5 == 4 or i == 16 else -1 for i in range(17))


def test_plain_decoding_is_argmax_of_log_p_and_noise_and_forced_tokens_cost_no_pass():
    target, params = toys.markov_target(10, 17, FORCED), toys.markov_params(10)
    decoded = autoregressive_decode(target, params, jnp.zeros((6, 1)), toys.sequence_keys(1, 6))
    noise = np.asarray(gumbel_noise(toys.sequence_keys(1, 6), jnp.tile(jnp.arange(17)[None], (6, 1)), 10))
    log_probs, expected = np.asarray(jax.nn.log_softmax(params, axis=-1)), np.array([FORCED] * 6)
    for row in range(6):
        last = 10
        for place, wanted in enumerate(FORCED):
            last = wanted if wanted >= 0 else int(np.argmax(log_probs[last] + noise[row, place]))
            expected[row, place] = last
    np.testing.assert_array_equal(decoded.tokens, expected)
    assert (np.asarray(decoded.rounds) == sum(token < 0 for token in FORCED) - 1).all()


def test_a_finished_sequence_has_a_place_for_each_pending_token():
    """Even if the stream ends in two forced tokens, more than anywhere else, while other sequences continue."""
    stream = Stream(toys.stream("chain", 1)[0])
    last = np.flatnonzero(stream.forced < 0)[-1]
    assert stream.longest == 2 and stream.run[last + 1] == 2
    decoded = stream.begin(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, bool), 2)
    pending = stream.pending(decoded, jnp.array([stream.length]), jnp.array([3]))
    assert (stream.block_path(pending, jnp.zeros((1, 2), jnp.int32)) >= 0).all()


def test_accepted_tokens_are_counted_before_forced_and_free_bonus_tokens():
    """Two rounds accept one token each: the first's bonus token is forced, the second's is not."""
    stream = Stream(toys.markov_target(4, 8, (-1, -1, 3, -1, -1, 3, 3, 3)))
    decoded = stream.begin(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, bool), 2)
    path, one, none = jnp.array([[0, 1]]), jnp.ones(1, jnp.int32), jnp.zeros((1, 1))
    verdict = Verification(path, one, one, path, none > 0, none)
    length = one
    for expected in (3, 8):
        decoded, added = stream.record(decoded, length, one > 0, path, verdict)
        length = length + added
        assert length.tolist() == [expected]
    assert decoded.accepted.tolist() == [[0, 2]] and decoded.rounds.tolist() == [2]


@pytest.mark.parametrize(("row", "value"), [(6, jnp.nan), (4, jnp.nan), (4, jnp.inf)])
def test_logits_that_are_not_numbers_end_a_sequence_and_are_reported(row, value):
    """Logits of the prefill (row 6) or after token 4; sequences that never meet them are unaffected."""
    vocab, length, batch = 6, 12, 16
    target, sound = toys.markov_target(vocab, length), toys.markov_params(vocab)
    params, conditioning = sound.at[row, 2].set(value), jnp.zeros((batch, 1))
    decoded, expected = (
        speculative_decode(
            target, given, conditioning, toys.sequence_keys(3, batch),
            drafting=eagle(toys.noisy_drafter(target), DraftTree.chain(2)),
            drafting_params=toys.noisy_params(sound, conditioning, 0.3),
        )
        for given in (params, sound)
    )  # fmt: skip
    assert expected.finite.all()
    met = (np.asarray(expected.tokens)[:, :-1] == 4).any(axis=1) | (row == vocab)
    np.testing.assert_array_equal(np.asarray(decoded.finite), ~met)
    assert met.any() and met.all() == (row == vocab)
    np.testing.assert_array_equal(decoded.tokens[~met], expected.tokens[~met])
    assert int(decoded.rounds.max()) <= int(expected.rounds.max())


def arguments(batch=4):
    drafter, drafter_params = toys.random_drafter()
    return {
        "target": toys.llamagen(), "target_params": toys.target_params(), "conditioning": toys.conditioning(batch),
        "keys": toys.sequence_keys(0, batch), "drafting": eagle(drafter, DraftTree.chain(2)),
        "drafting_params": drafter_params,
    }  # fmt: skip


def changed_target(**changes):
    return dataclasses.replace(toys.llamagen(), **changes)


RELAXED = LanternPlusPlus(4)
MISTAKES = {
    "too few keys": ({"keys": toys.sequence_keys(0, 3)}, "conditioning has shape (4, 1) for 3 keys: give conditional"),
    "raw keys": (
        {"keys": lambda: jax.random.split(jax.random.PRNGKey(7), 4)},
        "keys are (4, 2) of uint32: give one key per sequence, such as jax.random.split(key, batch), and "
        "jax.random.wrap_key_data(keys) for those of PRNGKey",
    ),
    "no array": (
        {"target_params": {"params": {}, "act": jax.nn.relu}},
        "target_params['act'] is custom_jvp, no array: partition the model first",
    ),
    "explicit mesh": (
        {"conditioning": lambda: on_explicit_mesh(toys.conditioning(4), "pictures")},
        "conditioning lies on a mesh with axes ('pictures', 'other'): give it as mesh=",
    ),
    "no sequences": (
        {"conditioning": toys.conditioning(0), "keys": lambda: toys.sequence_keys(0, 4)[:0]},
        "conditioning has no sequence: give at least one",
    ),
    "guidance": ({"guidance": jnp.float32(2)}, "guidance has shape () for 4 keys: give [4]"),
    "vocabulary": ({"target": lambda: changed_target(vocab_size=31)}, "target.prefill returns logits (4, 32) of "),
    "parameters": ({"target_params": {"params": {}}}, "target.prefill fails on what it was given"),
    "depth": (
        {"drafting": lambda: changed_drafting(max_depth=3)},
        "drafting.propose returns a topology of depth 2: its record says",
    ),
    "tree": ({"drafting": lambda: eagle(toys.random_drafter()[0], DraftTree.empty())}, "no node below its root"),
    "coupling": ({"coupling": "glue"}, "unknown coupling 'glue': choose one of gumbel, rejection"),
    "named drafting": ({"drafting": "jacobi"}, "drafting 'jacobi' is not valid: give a Drafting, such as jacobi("),
    "keys": ({"keys": 0}, "keys are 0: give one key per sequence"),
    "no codebook": ({"rule": RELAXED}, "a relaxed rule needs a codebook"),
    "batch": ({"mesh": lambda: jax.make_mesh((8,), ("data",))}, "batch 4 does not divide over 8 devices: pad"),
    "axis": ({"mesh": lambda: jax.make_mesh((8,), ("rows",))}, "the mesh has no axis 'data', only 'rows'"),
    "growing cache": ({"target": lambda: changed_target(commit=grow)}, "target.commit turn the state's .length from"),
    "broken commit": ({"target": lambda: changed_target(commit=broken)}, "target.commit fails on what it was given"),
    "no features": ({"target": lambda: returning(1, None)}, "target.score returns features NoneType: return [G, "),
}  # fmt: skip


def grow(cache, block, path, count):
    cache = toys.llamagen().commit(cache, block, path, count)
    return cache.replace(length=cache.length.astype(jnp.float32))


def broken(*given):
    raise KeyError("no such part")


def returning(which, value):
    """Makes a target whose ``score`` returns ``value`` in one place."""

    def score(*given):
        results = toys.llamagen().score(*given)
        return (*results[:which], value, *results[which + 1 :])

    return changed_target(score=score)


def changed_drafting(**changes):
    return dataclasses.replace(arguments()["drafting"], **changes)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_reported_in_one_line(mistake):
    changes, message = MISTAKES[mistake]
    with refused(re.escape(message)):
        made = {
            name: value() if isinstance(value, FunctionType) else value for name, value in changes.items()
        }
        speculative_decode(**arguments() | made)


def test_a_generation_is_exported_with_its_records():
    pytest.importorskip("flatbuffers", reason="what JAX writes programs with")

    def decode(sampling, keys):
        return autoregressive_decode(
            toys.markov_target(10, 17), toys.markov_params(10), jnp.zeros((2, 1)), keys, sampling=sampling
        )

    given = SamplingParams.create(0.9, 4), toys.sequence_keys(0, 2)
    written = jax.export.export(jax.jit(decode))(*given).serialize()
    read = jax.export.deserialize(written).call(*given)
    assert isinstance(read, Decoded)
    jax.tree.map(np.testing.assert_array_equal, read, decode(*given))
