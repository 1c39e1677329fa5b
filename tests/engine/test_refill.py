"""New sequences in the slots of finished ones have the tokens that they have alone, beside any neighbours."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.protocols import Drafting
from lantern_jax.engine.programs import NotRefillable
from tests import meshes
from tests.cases import exhaustive, slow
from tests.tiny_checkpoint import PROMPTS, TOKENS, altered_pipeline, drafters, pipeline_on, tiny_pipeline

SEED, SLOTS = 5, 4


def rows_of(pipeline):
    labels = pipeline.encode(PROMPTS).arrays["labels"]
    return lambda numbers: labels[np.asarray(numbers) % len(PROMPTS)]


def parts(decoded, slot: int) -> tuple:
    return decoded.tokens[slot], decoded.rounds[slot], decoded.accepted[slot]


def refilled(engine, job, rows, count: int) -> dict[int, tuple]:
    """Returns the ``parts`` of sequences 0 to ``count`` by number, through ``SLOTS`` slots, one round at a time."""
    waiting, made = list(range(SLOTS, count)), {}
    run = engine.start(job, rows(range(SLOTS)), seed=SEED, most=SLOTS)
    while len(made) < count:
        decoded = engine.finish(run)
        done = [slot for slot in np.flatnonzero(run.finished) if run.numbers[slot] not in made]
        for slot in done:
            made[int(run.numbers[slot])] = parts(decoded, slot)
        taken, waiting = waiting[: len(done)], waiting[len(done) :]
        if taken:
            run = engine.refill(run, np.array(done[: len(taken)]), rows(taken), np.array(taken))
            assert not run.finished[done[: len(taken)]].any()
        run = engine.advance(run, 1)
    return made


def unrefilled(engine, job, rows, count: int) -> dict[int, tuple]:
    made = {}
    for first in range(0, count, SLOTS):
        numbers = range(first, min(first + SLOTS, count))
        decoded = engine.finish(engine.advance(engine.start(job, rows(numbers), seed=SEED, first=first)))
        made |= {number: parts(decoded, slot) for slot, number in enumerate(numbers)}
    return made


def assert_same(made, expected):
    assert sorted(made) == sorted(expected)
    for number, parts in expected.items():
        for ours, theirs in zip(made[number], parts, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"sequence {number}")


# One state of each kind. A window's is refilled below, after regrouping.
@pytest.mark.parametrize("method", [
    "ar", slow("echo:nodes=4,depth=2,frontier=2,children=2"), slow("zipar:ahead=2"),
    *map(exhaustive, ("led", "parallelspec", "scd:window=4,initial=random")),
])  # fmt: skip
def test_refilled_sequences_are_those_made_alone(method):
    pipeline = tiny_pipeline()
    if method == "parallelspec":
        pipeline = altered_pipeline(drafters={"parallel": drafters()["parallel"]})
    job = pipeline.job(pipeline.check("a lake", method=method))
    engine, rows = pipeline.engine, rows_of(pipeline)
    made = refilled(engine, job, rows, 11)
    assert_same(made, unrefilled(engine, job, rows, 11))
    assert len({tuple(tokens) for tokens, *_ in made.values()}) > 8
    if method not in ("ar", "zipar:ahead=2"):
        assert len({int(rounds) for _, rounds, _ in made.values()}) > 1, "all slots finish together"


def test_regrouped_sequences_are_those_made_alone():
    """Two slots continue two of four sequences, then four continue these and a new one; the first run continues too."""
    pipeline = pipeline_on(1)
    engine, rows = pipeline.engine, rows_of(pipeline)
    job = pipeline.job(pipeline.check("a lake", method="jacobi:window=4"))
    run = engine.advance(engine.start(job, rows(range(SLOTS)), seed=SEED, most=SLOTS), 1)
    fewer = engine.advance(engine.regroup(run, np.array([2, 0])), 1)
    assert fewer.numbers.tolist() == [2, 0] and len(fewer.lengths) == len(fewer.inputs.keys) == 2
    assert (fewer.lengths > run.lengths[[2, 0]]).all()
    more = engine.regroup(fewer, np.array([0, 1, 1, 0]))
    assert engine.has_program(fewer, SLOTS) and not engine.has_program(fewer, 3)
    more = engine.refill(more, np.array([2]), rows([9]), np.array([9]))
    expected = unrefilled(engine, job, rows, 12)
    for after, numbers in ((more, [2, 0, 9, 2]), (run, [0, 1, 2, 3])):
        after = engine.advance(after)
        decoded = engine.finish(after)
        assert after.numbers.tolist() == numbers
        for slot, number in enumerate(numbers):
            assert_same({number: parts(decoded, slot)}, {number: expected[number]})


def test_sequences_stay_on_their_devices():
    pipeline = pipeline_on(2)
    job = pipeline.job(pipeline.check("a lake", method="ar"))
    run = pipeline.engine.start(job, rows_of(pipeline)(range(2)), seed=SEED)
    with pytest.raises(NotRefillable, match="group of devices"):
        pipeline.engine.regroup(run, np.array([0]))


# The parts of a model exchange values while one group prefills and the other does not.
TREES = [exhaustive(*mesh, f"gumbel:tree={meshes.TREE}") for mesh in ((1, 1), (2, 1), (2, 2))]


@pytest.mark.slow
@pytest.mark.parametrize(("data", "model", "method"), [(2, 2, "ar"), *TREES])
def test_a_group_of_one_slot_takes_a_new_sequence_or_keeps_its_own(data, model, method):
    """One group of devices prefills while the other keeps a sequence that has begun."""
    engine, job = meshes.engine("llamagen", data, model), meshes.job("llamagen", method=method)
    rows = meshes.prompts("llamagen", 10)
    run = engine.advance(engine.start(job, rows[:data], seed=SEED), 1)
    before = run.lengths.copy()
    last = np.array([data - 1])
    run = engine.refill(run, last, rows[9:], np.array([9]))
    assert run.lengths[-1] < before[-1] and (run.lengths[:-1] == before[:-1]).all()
    made = engine.finish(engine.advance(run))
    alone = engine.start(job, rows[run.numbers], seed=SEED, numbers=run.numbers)
    alone = engine.finish(engine.advance(alone))
    for slot in range(data):
        assert_same({slot: parts(made, slot)}, {slot: parts(alone, slot)})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["jacobi:window=4", exhaustive("gumbel:tree=chain")])
def test_slots_with_forced_tokens_are_refilled(method):
    """Row ends, pending tokens and prompts of different lengths."""
    engine, job = meshes.engine("lumina", 1, 1), meshes.job("lumina", method=method)
    prompts = meshes.prompts("lumina", 8)
    assert (job.program.target.forced >= 0).any() and not prompts.mask.all()

    def rows(numbers):
        return jax.tree.map(lambda leaf: leaf[np.asarray(numbers) % 8], prompts)

    made = refilled(engine, job, rows, 7)
    assert_same(made, unrefilled(engine, job, rows, 7))
    assert len({int(rounds) for _, rounds, _ in made.values()}) > 1, "all slots finish together"


def test_a_state_that_belongs_to_no_sequence_is_refused():
    pipeline = tiny_pipeline()
    job = pipeline.job(pipeline.check("a lake", method="ar"))
    plain = job.program.drafting
    shared = Drafting(
        lambda *arguments: {"table": jnp.zeros(3)}, plain.propose, plain.observe, plain.max_depth
    )
    job = dataclasses.replace(job, program=job.program._replace(drafting=shared))
    rows = rows_of(pipeline)
    run = pipeline.engine.start(job, rows(range(2)), seed=SEED)
    with pytest.raises(NotRefillable, match=r"table.*\(3,\).*one axis of sequences"):
        pipeline.engine.refill(run, np.array([0]), rows([2]), np.array([2]))


def test_few_programs_refill_any_number_of_slots():
    pipeline = tiny_pipeline()
    job = pipeline.job(pipeline.check("a lake", method="ar"))
    engine, rows = pipeline.engine, rows_of(pipeline)
    run = engine.start(job, rows(range(SLOTS)), seed=SEED)
    for count in (1, 3, 4):
        run = engine.advance(run)
        assert (run.lengths == TOKENS).all()
        run = engine.refill(run, np.arange(count), rows(range(count)), np.arange(count) + 7)
        assert run.numbers.tolist() == [7, 8, 9, 10][:count] + [1, 2, 3][count - 1 :]
    own = [key for key in engine.programs if key.kind == "refill" and key.program == job.program]
    sizes = {key.rows for key in own if key.size == SLOTS}
    # Other tests may have refilled two slots.
    assert {1, 4} <= sizes <= {1, 2, 4}


def test_every_sequence_may_have_a_seed_of_its_own():
    pipeline = tiny_pipeline()
    job = pipeline.job(pipeline.check("a lake", method="ar"))
    engine, rows = pipeline.engine, rows_of(pipeline)

    def alone(seed, number):
        run = engine.start(job, rows([number]), seed=seed, first=number)
        return engine.finish(engine.advance(run)).tokens[0]

    seeds, numbers = np.array([7, 7, 8]), np.array([0, 1, 1])
    run = engine.start(job, rows(numbers), seed=seeds, numbers=numbers, most=SLOTS)
    run = engine.advance(run, 2)
    # A slot need not be finished when its sequence is no longer wanted.
    run = engine.refill(run, np.array([1]), rows([1]), np.array([1]), seeds=np.array([9]))
    assert (run.seeds.tolist(), run.numbers.tolist()) == ([7, 9, 8], [0, 1, 1])
    tokens = engine.finish(engine.advance(run)).tokens
    for row, (seed, number) in zip(tokens, ((7, 0), (9, 1), (8, 1)), strict=True):
        np.testing.assert_array_equal(row, alone(seed, number))
    assert len({tuple(row) for row in tokens}) == 3
