"""The race behind ``lantern tune``, with made-up ways of decoding on made-up time."""

import dataclasses
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.apps.measuring import tune as tuning
from lantern_jax.apps.measuring.subject import Decodings, checkpoint_subject, sample_prompts
from lantern_jax.apps.measuring.tune import Entrant, halved
from lantern_jax.engine.generation import Timing
from lantern_jax.settings.tuned import Key
from tests.tiny_checkpoint import tiny_pipeline

KEY = Key("m", "0", "cpu", 2, "float32", 1.0, 1.0, 0, 1.0, 0.0)
# Strict ways by their speed; the second is the default.
SPEEDS = {"ar": 1.0, "slow": 0.5} | {f"led:nodes={number}": 1 + number / 10 for number in range(1, 9)}
COMPILING = 5.0


def decodings(seconds, shares=(0.0, 0.0), compiling=0.0):
    timing = Timing(decoding=seconds, compiling=compiling)
    return Decodings(np.zeros((2, 9), int), np.full(2, 4), np.array(shares), timing)


def entrant(name, *seconds, share=None, **more):
    """Returns one that decoded in these seconds; relaxed if it has a share of substituted tokens."""
    job = SimpleNamespace(name=name, rule=SimpleNamespace(is_strict=share is None))
    turns = tuple(decodings(each, (share or 0.0,) * 2) for each in seconds)
    return Entrant({"method": name}, job, turns=turns, **more)


class Machine:
    """A subject whose ways decode at their speeds; ``slowness`` by turn slows all of them; Ctrl-C comes at a time."""

    def __init__(
        self, speeds=SPEEDS, shares=None, slowness=lambda number: 1.0, stop=np.inf, compiling=COMPILING
    ):
        self.speeds, self.shares, self.slowness, self.stop = speeds, shares or {}, slowness, stop
        self.compiling = compiling
        self.now, self.made, self.free, self.prompts = 0.0, [], np.arange(9), 4

    def settings(self, options):
        return SimpleNamespace(batch=2)

    def decode(self, job, first, count, batch):
        compiling = 0.0 if job.name in (name for name, _ in self.made) else self.compiling
        seconds = self.slowness(first // batch) / self.speeds[job.name]
        self.now += seconds + compiling
        if self.now > self.stop:
            raise KeyboardInterrupt
        self.made.append((job.name, first // batch))
        return decodings(seconds, self.shares.get(job.name, (0.0, 0.0)), compiling)


@pytest.fixture
def run(monkeypatch):
    """(machine, seconds, budget) -> the name of the winner, what is written, whether Ctrl-C came."""

    def run(machine, seconds=1e6, budget=None):
        strict = [
            entrant(name, is_default=name == "slow") for name in machine.speeds if name not in machine.shares
        ]
        loose = [entrant(name, share=0.0) for name in machine.shares]
        monkeypatch.setattr(tuning, "strict", lambda *_: strict)
        monkeypatch.setattr(tuning, "relaxed", lambda *_: loose)
        tuned, is_stopped = tuning.tune(
            machine, {}, KEY, budget, lambda share: share * seconds - machine.now, print
        )
        return tuned.options["method"], tuned, is_stopped

    return run


def test_the_slower_half_drops_out_and_the_rest_run_twice_as_often(run):
    machine = Machine()
    name, tuned, is_stopped = run(machine)
    assert (name, is_stopped, tuned.confirmed) == ("led:nodes=8", False, True)
    assert tuned.speedup == pytest.approx(1.8)
    # A first turn, then rounds of 2, 4 and 8, with 4, 2 and 1 of the eight.
    turns = {"led:nodes=8": 15, "led:nodes=7": 7, "led:nodes=6": 3, "led:nodes=5": 3, "ar": 15, "slow": 15}
    assert Counter(name for name, _ in machine.made) == turns | {
        f"led:nodes={number}": 1 for number in range(1, 5)
    }
    # All make the same pictures, turn by turn.
    assert [number for name, number in machine.made if name == "led:nodes=7"] == list(range(7))
    rows = tuned.found["candidates"]
    assert [row["options"]["method"] for row in rows][:4] == ["led:nodes=8", "ar", "slow", "led:nodes=7"]
    assert rows[0]["tokens_a_second"] == pytest.approx(9 * 2 * 1.8) and rows[0]["tokens_a_pass"] == 2
    assert [row["is_default"] for row in rows[:3]] == [False, False, True]


def test_speeds_are_relative_to_plain_decoding_turn_by_turn(run):
    """A machine that slows down in the middle changes nothing of a ratio, and the first turn does not count."""
    plain, other = entrant("ar", 9.0, 1.0, 8.0, 2.0), entrant("b", 1.0, 0.5, 4.0, 1.0)
    assert other.times_plain(plain) == (2.0, 0.0)
    assert entrant("b", 3.0).times_plain(plain) == (3.0, None), "but where there is no other"
    ratio, error = entrant("b", 1.0, 1.0, 4.0).times_plain(plain)
    assert ratio == 9 / 5 and error == pytest.approx(np.std([1, 2], ddof=1) / 2**0.5)
    assert run(Machine(slowness=lambda number: 1 + number % 3))[1].speedup == pytest.approx(1.8)


def test_plain_decoding_is_written_where_nothing_is_faster(run):
    machine = Machine({"ar": 1.0, "slow": 0.5, "led": 0.9})
    assert run(machine)[0] == "ar"
    assert Counter(name for name, _ in machine.made) == dict.fromkeys(machine.speeds, 15), "few run as often"
    assert run(Machine({"ar": 1.0, "slow": 1.5, "led": 0.9}))[0] == "slow"


@pytest.mark.parametrize(("minutes", "started"), [(0.01, 2), (1, 4), (2, 9), (5, 10)])
def test_a_race_ends_in_time(run, minutes, started):
    """With less time fewer begin, and there are fewer rounds; a short comparison takes place in any case."""
    machine = Machine()
    name, tuned, _ = run(machine, 60 * minutes)
    shortest = 2 * COMPILING + 3 * (1 / SPEEDS["ar"] + 1 / SPEEDS["slow"])
    assert machine.now <= max(60 * minutes, shortest)
    turns = Counter(name for name, _ in machine.made)
    assert len(turns) == started and turns["ar"] == turns["slow"] >= 3 and tuned.confirmed
    assert name == (list(SPEEDS)[started - 1] if started > 2 else "ar")


def test_a_field_that_is_too_large_for_the_time_left_is_halved_again(run):
    """Where compiling takes no time, first turns of strict and relaxed ways alone take most of it."""
    speeds = {"ar": 1.0, "slow": 0.5} | {f"led:nodes={number}": 1.0 for number in range(1, 99)}
    machine = Machine(speeds, {f"led:nodes={number}": (0.0, 0.0) for number in range(50, 99)}, compiling=0.0)
    run(machine, 60.0, budget=0.5)
    assert 50 < machine.now <= 60


def test_what_was_tried_survives_ctrl_c(run):
    with pytest.raises(KeyboardInterrupt):
        run(Machine(stop=4.0))
    name, tuned, is_stopped = run(Machine(stop=40.0))
    assert is_stopped and not tuned.confirmed and name == "led:nodes=4" and "not confirmed" in tuned.words
    wild = Machine(SPEEDS | {"wild": 4.0}, {"wild": (0.5, 0.5)}, stop=64.0)
    assert run(wild, budget=0.1)[0] == "led:nodes=8" and wild.made[-1] == ("wild", 0), "beyond the budget"
    name, tuned, is_stopped = run(Machine(stop=80.0))
    assert is_stopped and tuned.confirmed and name == "led:nodes=8" and "when tuned" in tuned.words


def test_relaxed_ways_keep_to_the_budget(run):
    """The loosest that does is the fastest; without a budget there is none."""
    speeds = SPEEDS | {"tight": 2.0, "loose": 3.0, "wild": 4.0}
    shares = {"wild": (0.5, 0.5), "loose": (0.0625, 0.0625), "tight": (0.03125, 0.03125)}
    for budget, expected in (
        (None, "led:nodes=8"),
        (0.01, "led:nodes=8"),
        (0.05, "tight"),
        (0.0625, "loose"),
        (1.0, "wild"),
    ):
        name, tuned, _ = run(Machine(speeds, shares), budget=budget)
        assert name == expected and tuned.budget == budget
        assert tuned.substituted == shares.get(name, (0.0,))[0]


def test_the_error_of_what_is_substituted_counts_against_it():
    one = entrant("a", 1.0, 1.0, share=0.05)
    assert one.keeps_to(0.05) and not one.keeps_to(0.04) and not one.keeps_to(None)
    unsure = Entrant({}, one.job, turns=(decodings(1.0, (0.02, 0.08)),))
    assert unsure.substituted() == (0.05, pytest.approx(0.03))
    assert unsure.keeps_to(0.081) and not unsure.keeps_to(0.079)
    assert entrant("b", 1.0).keeps_to(None), "strict"


def test_nobody_beyond_the_budget_stays_in_the_race():
    field = {one.name: one for one in (
        entrant("ar", 1.0), entrant("default", 2.0, is_default=True), entrant("fast", 0.2, share=0.3),
        entrant("a", 0.5), entrant("b", 0.6),
    )}  # fmt: skip
    assert [name for name, one in halved(field, 0.1).items() if one.is_out] == ["fast", "b"]
    assert [name for name, one in halved(field, 0.3).items() if one.is_out] == ["a", "b"]
    assert not any(one.is_out for one in halved(dict(list(field.items())[:2]), None).values())


@pytest.mark.parametrize(
    "defaults", [{}, {"method": "led:window=3"}, {"method": "near"}, {"rule": "near:tau=1.5"}]
)
def test_the_default_takes_part_and_all_others_give_plain_decodings_tokens(defaults):
    pipeline = tiny_pipeline()
    subject = checkpoint_subject("tiny", pipeline, sample_prompts(pipeline.checkpoint, 4))
    recipe = dataclasses.replace(subject.recipe, defaults={"guidance": 2.0} | defaults)
    subject, options = dataclasses.replace(subject, recipe=recipe), {"batch": 2}
    plain, *others = tuning.strict(subject, options)
    (default,) = (one for one in (plain, *others) if one.is_default)
    usual = subject.settings(options)
    if usual.keeps_tokens:
        best, _ = recipe.choice(usual, 2, "cpu", 1)
        assert default.options == {"method": best.method}
    else:
        assert subject.settings(options | default.options) == usual and not default.keeps_to(None)
    strict = [one for one in others if not one.is_default]
    made = [subject.settings(options | one.options) for one in strict]
    assert plain.name == "ar" and len(strict) > 10 and all(one.keeps_tokens for one in made)
    assert len(set(made)) == len(made), "each once"
    # The fastest two but plain decoding, with every rule.
    field = {
        one.name: dataclasses.replace(one, turns=(decodings(9 - number),))
        for number, one in enumerate(strict[:4])
    }
    field = {"ar": dataclasses.replace(plain, turns=(decodings(0.1),))} | field
    relaxed = tuning.relaxed(subject, options, field)
    assert {one.options["method"] for one in relaxed} == {strict[3].name, strict[2].name}
    assert [one.options["rule"] for one in relaxed] == 2 * list(tuning.RULES)
    assert not any(one.job.rule.is_strict or one.is_default for one in relaxed)


def test_without_a_drafter_only_windows_take_part():
    subject = checkpoint_subject("tiny", tiny_pipeline(), ["a lake"])
    subject = dataclasses.replace(subject, recipe=dataclasses.replace(subject.recipe, drafters={}))
    assert {one.name.partition(":")[0] for one in tuning.strict(subject, {})} == {"ar", "jacobi"}
