"""The clock of a tuning on made-up time, and a tuning that keeps to it."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from lantern_jax.apps.measuring import choose, costs, tune
from lantern_jax.apps.measuring.clock import Clock
from lantern_jax.apps.measuring.paths import MAX_DEPTH
from lantern_jax.apps.measuring.subject import Decodings, Subject, checkpoint_subject, sample_prompts
from lantern_jax.engine.generation import Timing
from lantern_jax.settings.settings import steers
from lantern_jax.settings.tuned import Key, read_tuned
from tests.tiny_checkpoint import tiny_pipeline


@dataclass
class Time:
    """A time that passes only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_fits_that_would_end_too_late():
    now = Time()
    clock = Clock(100, now)
    assert clock.fits(pictures=9), "nothing is known yet"
    for kind, seconds in (("plain", 15), ("pictures", 20)):
        assert clock.predicted(pictures=1, other=3) == (0 if kind == "plain" else 15)
        with clock.piece(kind):
            now.now += seconds
    assert clock.spent == 35 and clock.predicted(pictures=2, ranks=1, other=3) == 70
    assert clock.fits(pictures=3) and not clock.fits(pictures=4) and not clock.fits(0.5, pictures=1)
    clock.keep(50)
    assert clock.left() == 15 and not clock.fits(pictures=1)
    assert Clock(now=now).fits(pictures=10**9), "without an end"


class Machine:
    """A machine on which a program takes seconds to compile and almost none to run: nothing is computed."""

    def __init__(self, subject: Subject, now: Time):
        self.subject, self.now, self.programs = subject, now, set()

    def passes(self, program, seconds: float) -> None:
        self.now.now += 0.01 + seconds * (program not in self.programs)
        self.programs.add(program)

    def round(self, job) -> float:
        self.passes((job.program, "batch"), 5.0)
        tree = getattr(job.program.drafting, "tree", None)
        return 1.0 if tree is None else 1.0 + 0.01 * tree.num_nodes

    def decode(self, job, first, count, batch) -> Decodings:
        self.passes((job.program, batch), 6.0)
        rounds = np.full(count, 9) - np.arange(count) % 2
        tokens = np.zeros((count, len(self.subject.recipe.target().forced)), np.int32)
        timing = Timing(decoding=0.01 + 0.001 * (first % 3))
        return Decodings(tokens, rounds, np.zeros(count), 0.0, timing)

    def ranks(self, subject, kind, settings, tokens, *, batch) -> np.ndarray:
        self.now.now += 7.0
        return np.zeros((*tokens.shape, MAX_DEPTH), np.int32)


@pytest.fixture
def machine(monkeypatch):
    """Returns a maker of tuners on a machine where nothing is computed; Ctrl-C stops one at a given message."""
    now, pipeline = Time(), tiny_pipeline()
    subject = checkpoint_subject("tiny", pipeline, sample_prompts(pipeline.checkpoint, 4))
    machine = Machine(subject, now)
    monkeypatch.setattr(costs.Stopwatch, "round", lambda watch, job: machine.round(job))
    monkeypatch.setattr(costs.Stopwatch, "begin", lambda watch, job: 1.0)
    monkeypatch.setattr(Subject, "decode", lambda subject, *arguments: machine.decode(*arguments))
    monkeypatch.setattr(tune, "collect_ranks", machine.ranks)

    def tuner(minutes, stop=None, most=None, subject=subject):
        def told(text):
            if stop is not None and text.startswith(stop):
                raise KeyboardInterrupt

        settings = subject.settings({"batch": 1})
        goal = tune.Goal({"batch": 1}, choose.Budget(most), pictures=2, minutes=minutes)
        key = Key.of(pipeline.checkpoint, settings, pipeline.dtype)
        return tune.Tuner(subject, goal, key, told, Clock(60 * minutes, now))

    tuner.now, tuner.subject = now, subject
    return tuner


@pytest.mark.parametrize("minutes", [1.0, 2.0, 3.0, 60.0])
def test_a_tuning_ends_in_time(minutes, machine):
    """With less time, less is tried; the best of that is confirmed all the same."""
    made = machine(minutes).run()
    confirmed = [row for row in made.rows if row.measured is not None]
    assert machine.now() <= 60 * minutes
    assert 2 <= len(confirmed) <= 5 and made.tuned.name in {row.name for row in confirmed}
    assert (len(made.tuned.found["costs"]["passes"]) == len(costs.NODES)) == (minutes == 60)


def test_what_was_found_survives_ctrl_c(machine):
    with pytest.raises(KeyboardInterrupt):
        machine(60, "timing passes").run()
    searching = machine(60, "a window of").run()
    assert searching.is_stopped and searching.default == "" and len(searching.rows) > 5
    assert not any(row.measured for row in searching.rows) and not searching.tuned.found["confirmed"]
    assert "expected, not confirmed" in searching.tuned.words and searching.tuned.speedup > 1
    compiling = machine(60, "compiling").run()
    assert compiling.default and not compiling.tuned.found["confirmed"]
    whole = machine(60).run()
    assert not whole.is_stopped and whole.tuned.found["confirmed"] and "when tuned" in whole.tuned.words


@pytest.mark.parametrize("defaults", [{}, {"method": "gumbel", "tree": [[0], [1]]}, {"method": "led:window=3"},
    {"rule": "near:tau=1.5"}, {"method": "near"}])  # fmt: skip
@pytest.mark.parametrize("budget", [None, 0.5])
def test_the_default_is_written_by_name_where_it_is_the_fastest(defaults, budget, machine, tmp_path):
    """So that a call with the file decodes the same way; a relaxed default is written only with a budget."""
    recipe = dataclasses.replace(machine.subject.recipe, defaults={"guidance": 2.0} | defaults)
    subject = dataclasses.replace(machine.subject, recipe=recipe)
    tuner = machine(60, most=budget, subject=subject)
    tuner.costs = costs.Costs({1: 1.0})
    plain = tuner._candidate(tune.PLAIN, {"method": "ar"}, 1, np.full(2, 9), 1.0)
    settings, row = subject.settings(tuner.base), tuner._default([plain])
    assert subject.settings(tuner.base | row.options) == settings
    is_relaxed, found = not settings.rule.is_strict, tuner._tuned([row, plain], "", {row.name, plain.name})
    assert (found.name == tune.DEFAULT) == (budget is not None or not is_relaxed)
    (tmp_path / "a.json").write_text(found.to_json())
    read = read_tuned(tmp_path / "a.json").options
    assert steers(read) and read.get("rule", "strict") == (
        settings.method.texts["rule"] if budget else "strict"
    )
