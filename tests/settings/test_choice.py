"""``auto``: the account of a pass, the choice, what it says, and notes of runs, which no content makes harmful."""

import dataclasses
import json
import math
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.checkpoints.store import load as load_checkpoint
from lantern_jax.checkpoints.windows import PLAIN, WindowPoint, read_acceptance, write_acceptance
from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.devices.data_sheets import DEVICES
from lantern_jax.devices.figures import Figures, sheet_figures
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings import auto, choice, tuned
from lantern_jax.settings.choice import (
    TOKENS,
    Known,
    chosen,
    point_of,
    point_of_knobs,
    slowest,
    window_knobs,
    window_name,
)
from lantern_jax.settings.costs import Sizes, expected_costs
from lantern_jax.settings.notes import Notes, Run
from lantern_jax.settings.tuned import Key, Shelf, Tuned
from tests.refused import refused
from tests.tiny_checkpoint import tiny_pipeline

LED, JACOBI = WindowPoint(3, passes=2), WindowPoint(5)
KEY = Key("tiny", "0123", "a cpu", 2, "float32", 2.0, 1.0, 0, 1.0)


def costs(batch: int, device: str | None = None, is_full: bool = False, weights: int = 775_000_000):
    """Returns the costs for LlamaGen-XL's sizes, on a device of the table or on a CPU of two cores."""
    item = 4 if is_full or device is None else 2
    sizes = Sizes(weights * item, {"eagle": 51_000_000 * item}, item, 36, 1280, 256)
    figures = Figures(2e10, 7e10, 2e-6) if device is None else sheet_figures(DEVICES[device], is_full)
    return expected_costs(sizes, figures, 2 * batch)


def test_expected_passes_match_those_measured_on_an_h100():
    """Milliseconds of docs/results.md: plain steps, and rounds with 14 nodes."""
    for batch, step, window in ((1, 1.41, 1.72), (8, 1.51, 2.35), (64, 2.74, 8.6)):
        expected = costs(batch, "h100")
        assert expected.a_pass(1) == pytest.approx(step, rel=0.15)
        assert expected.window(DraftTree.window(4, 3, 2)) == pytest.approx(window, rel=0.3)
    assert sheet_figures(DEVICES["h100"], True).rate < sheet_figures(DEVICES["h100"], False).rate / 15


# What passes achieved on two cores of an EPYC (32 MB of cache).
EPYC = Figures(
    1.05e10, 1.2e11, 2e-6, attending=0.125, nodes=8, products={2: 9.5e-11, 8: 9.8e-11, 24: 1.85e-10, 64: 2.6e-10}
)  # fmt: skip


@pytest.mark.parametrize(("megabytes", "width", "measured"), [
    (42, 256, {1: 6.5, 3: 12.0, 6: 12.4, 9: 13.2, 17: 21.0}), (390, 768, {1: 36, 3: 58, 6: 56, 9: 72, 17: 148}),
])  # fmt: skip
def test_expected_passes_match_those_measured_on_two_cores(megabytes, width, measured):
    """Milliseconds by nodes, with guidance: for the demo and for LlamaGen-B."""
    account = expected_costs(Sizes(megabytes * 10**6, {}, 4, 12, width, 256), EPYC, 2)
    for nodes, ms in measured.items():
        assert account.a_pass(nodes) == pytest.approx(ms, rel=0.3)


def test_products_lie_on_lines_through_the_measured_ones():
    assert EPYC.product(5, 4) == pytest.approx(9.65e-11) and EPYC.product(1, 4) == 9.5e-11
    # A product bound by computing takes twice as long for twice the rows.
    assert EPYC.product(128, 4) == pytest.approx(2 * 2.6e-10)
    assert Figures(1e10, 1e11, 0).product(2, 4) == pytest.approx(1e-10 + 1e-11)


def test_few_pictures_get_guesses_and_many_none():
    first = chosen(costs(1, "h100"), {}, Known(), 1, 1024).way
    assert first.point == WindowPoint(21, 3, 2) and first.speedup > 2
    for device, many in (("h100", 512), (None, 64)):
        small = 9_500_000 if device is None else 775_000_000
        last = chosen(costs(many, device, weights=small), {}, Known(), many, 1024)
        assert last.way.point == PLAIN and last.way.knobs == {"method": "ar"}
    without = dataclasses.replace(costs(1, "h100"), drafts={})
    assert not any(way.point.passes for way in chosen(without, {}, Known(), 1, 1024).ways)
    assert all(way.point.branches <= 2 for way in chosen(without, {}, Known(), 1, 2).ways)


def test_notes_count_before_expectations():
    account, tokens = costs(1, "h100"), {LED: 2.9, JACOBI: 2.5}
    first = chosen(account, tokens, Known(), 1, 1024)
    assert first.way.point == LED
    words = "auto: led, 4 nodes: 2.9 tokens per pass at 1.2 times a step, "
    assert first.words.startswith(words) and first.words.endswith("x expected")
    # Slower here than plain decoding: then it is no longer chosen, and the reason is given.
    slow = {PLAIN: 1.0, LED: 1.25}
    after = chosen(account, {LED: 2.9, JACOBI: 3.0}, Known(ms=slow), 1, 1024)
    assert after.way.point == JACOBI
    assert next(way for way in after.ways if way.point == LED).speedup == 0.8
    assert "0.80x measured" in chosen(account, {LED: 2.9}, Known(ms=slow), 1, 1024).words
    # One noted way tells how far off the expectations of the others are.
    by_pace = chosen(account, tokens, Known(ms={LED: 0.7}), 1, 1024)
    assert by_pace.way.point == LED and by_pace.way.speedup < first.way.speedup
    # A little slower than plain decoding should be, and timed once: a busy machine may be why. Against a plain step
    # that was timed, there is no doubt.
    little = {LED: 1.05 * account.a_pass(1)}
    assert chosen(account, {LED: 2.9}, Known(ms=little), 1, 1024).way.point == LED
    little[PLAIN] = account.a_pass(1)
    assert chosen(account, {LED: 2.9}, Known(ms=little), 1, 1024).way.point == PLAIN
    # Much slower than plain decoding should be: plain decoding is tried.
    assert chosen(account, tokens, Known(ms={LED: 1.2 * account.a_pass(1)}), 1, 1024).way.point == PLAIN
    known = chosen(account, tokens, Known(tokens={JACOBI: 4.5}), 1, 1024)
    assert known.way.point == JACOBI and known.way.tokens == 4.5


@pytest.mark.parametrize(("promised", "is_taken"), [(1.1, False), (1.2, True)])
def test_what_was_never_timed_must_promise_clearly_more(promised, is_taken):
    """More than plain decoding, and more than the best of what was timed."""
    account = costs(1, "h100")
    step = account.a_pass(1)
    # Tokens per pass with which each is as fast as plain decoding.
    led, jacobi = account.window(LED.tree, "eagle", LED.passes) / step, account.window(JACOBI.tree) / step
    alone = chosen(account, {JACOBI: promised * jacobi}, Known(), 1, 1024)
    assert alone.way.point == (JACOBI if is_taken else PLAIN)
    timed = Known(ms={PLAIN: step, LED: step / 2})
    beside = chosen(account, {LED: 2 * led, JACOBI: 2 * promised * jacobi}, timed, 1, 1024)
    assert beside.way.point == (JACOBI if is_taken else LED)


def test_only_the_last_pictures_of_many_wait_for_the_slowest():
    """Timings of a batch alone also tell about many pictures that follow each other in its slots."""
    account, tokens, batch = costs(16), {JACOBI: 2.5}, 16
    assert slowest(1) == 1 and slowest(batch, math.inf) == 1 < slowest(batch, 4) < slowest(batch)
    ms = account.window(JACOBI.tree) / 2.5
    for known in (Known(), Known(ms={JACOBI: slowest(batch) * ms, PLAIN: account.a_pass(1)})):
        for turns in (1, 4, math.inf):
            made = chosen(account, tokens, known, batch, 1024, turns=turns)
            way = next(way for way in made.ways if way.point == JACOBI)
            assert way.speedup == pytest.approx(account.a_pass(1) / (slowest(batch, turns) * ms))


def test_windows_have_names_knobs_and_a_form_in_files():
    pipeline = tiny_pipeline()
    for point in (PLAIN, *TOKENS):
        assert point_of(pipeline.settings(window_knobs(point))) == point
        assert point_of_knobs(window_knobs(point)) == point
    assert window_name(WindowPoint(16, 3, 2, 4)) == "led, window 16, refine 3, 3 guesses for 2"
    assert window_name(WindowPoint(40, passes=4, nodes=56)) == "led, window 40, refine 3, 56 nodes by gaps"
    assert point_of_knobs({"method": "led", "tree": "chain"}) is None
    for knobs in (
        {"rule": "near"},
        {"coupling": "rejection", "tree": "chain"},
        {"tree": "chain"},
        {"method": "zipar"},
    ):
        assert point_of(pipeline.settings(knobs)) is None
    assert read_acceptance(write_acceptance(TOKENS.items())) == dict(TOKENS)
    wrong = {
        "5,1,0,0": 2, "a,1,0,0,0": 2, "5,1,0,0,0": "2", "3,1,0,99,0": 2, "65,1,0,0,0": 2, "2,1,0,0,0": 9,
        "4,1,0,0,0": None, "8,1,0,4,7": 2, "8,1,0,4,300": 2, "8,1,0,0,16": 2,
        # More nodes than a window of one place, and than any tree, has.
        "1,1,0,1,256": 1.5, "4,8,4,0,0": 2,
    }  # fmt: skip
    assert read_acceptance(wrong) == read_acceptance(None) == read_acceptance([1]) == {}


def test_a_call_is_noted_by_the_sizes_that_it_decodes_with():
    """A window has several guesses for its own places alone; sizes that a given tree leaves unread need not fit."""
    pipeline = tiny_pipeline()
    for knobs, point in (
        ({"method": "jacobi", "window": 2, "branches": 2, "levels": 3}, WindowPoint(2, 2, 2)),
        ({"method": "led", "window": 1, "levels": 2, "refine": 1}, WindowPoint(1, 1, 1, 2)),
        ({"method": "jacobi", "tree": "chain", "branches": 64, "levels": 2}, None),
        ({"method": "led", "tree": "chain", "window": 1, "levels": 2}, None),
        ({"method": "led", "tree": GapTree(6, 12), "window": 1}, None),
    ):
        settings = pipeline.settings(knobs)
        assert point_of(settings) == point
        assert point is None or (settings.levels, settings.tree) == (point.levels, point.tree)


@pytest.fixture
def notes(tmp_path):
    return Notes(tmp_path / "notes", KEY)


def test_notes_of_runs_are_read_back(notes, monkeypatch):
    assert notes.known() == Known()
    notes.add(Run(LED, 2.5, 4.0), Run(PLAIN, 1.0, 5.0))
    notes.add(Run(LED, 3.5, 3.0))
    known = notes.known()
    assert known == Known({LED: 2.8}, {PLAIN: 5.0, LED: 3.0})
    # Tokens per pass hold for any batch, times for one; another device, dtype or version starts anew.
    other = Notes(notes.folder, dataclasses.replace(KEY, batch=8)).known()
    assert other.tokens == {LED: 2.8} and not other.ms
    assert Notes(notes.folder, dataclasses.replace(KEY, dtype="bfloat16")).known() == Known()
    notes.add(Run(LED, float("nan"), 4.0), Run(JACOBI, 2.0, 0.0))
    assert notes.known() == known
    monkeypatch.setattr("lantern_jax.settings.notes.versions", lambda: {"jax": "0.1"})
    assert notes.known() == Known()


def test_the_quicker_quarter_of_the_last_eight_runs_counts(notes):
    """Also of those that another release kept."""
    for ms in range(1, 21):
        notes.add(Run(LED, 2.5, ms))
    content = json.loads(notes.file.read_text())
    assert content["ms"]["2"]["3,1,0,2,0"] == list(range(13, 21))
    assert notes.known().ms == {LED: 14.25}
    content["ms"]["2"]["3,1,0,2,0"] = list(range(1, 21))
    notes.file.write_text(json.dumps(content))
    assert notes.known().ms == {LED: 14.25}


DAMAGED = [
    b"", b"{", b"[]", b"\xff\xfe", b"{}" * 100_000, b'{"format": "lantern_jax notes of runs", "version": 2}',
    *(json.dumps({"format": "lantern_jax notes of runs", "version": 1} | parts).encode() for parts in (
        {"tokens": 3, "ms": []}, {"tokens": {"3,1,0,2,0": 1e300}}, {"ms": {"2": {"3,1,0,2,0": [-1]}}},
        {"ms": {"2": {"3,1,0,2,0": ["1"], "9,9,9,9,9": [1], "x": [1]}}},
        {"ms": {"2": {"3,1,0,2,0": 1}}}, {"ms": {"2": 1}},
    )),
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_or_foreign_notes_count_as_none(notes, content):
    notes.add(Run(LED, 2.5, 4.0))
    notes.file.write_bytes(content)
    assert notes.known() == Known()
    notes.add(Run(LED, 2.5, 4.0))
    assert notes.known() == Known({LED: 2.5}, {LED: 4.0})


def test_notes_that_cannot_be_written_stop_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    Notes(tmp_path / "file", KEY).add(Run(LED, 2.5, 4.0))
    Notes(tmp_path / "file" / "below", KEY).add(Run(LED, 2.5, 4.0))
    folder = Notes(tmp_path / "is_folder", KEY)
    folder.file.mkdir(parents=True)
    folder.add(Run(LED, 2.5, 4.0))
    assert folder.known() == Known()


def test_concurrent_writers_leave_whole_notes(notes):
    """Some runs are not noted; the notes are whole at any moment."""

    def write():
        for _ in range(20):
            notes.add(Run(LED, 2.5, 4.0))
            assert set(notes.known().ms) <= {LED}

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes.known() == Known({LED: 2.5}, {LED: 4.0})
    assert [path.name for path in notes.folder.iterdir()] == [notes.file.name]


@pytest.fixture
def opened(tiny_folder, tmp_path, monkeypatch):
    """tuned -> a pipeline whose notes are the test's."""
    monkeypatch.setattr(tuned, "user_cache_directory", lambda: tmp_path)

    def opening(how="auto"):
        pipeline = Pipeline(load_checkpoint(tiny_folder, abstract=True), None, Shelf.of(how))
        pipeline.engine.programs = tiny_pipeline().engine.programs
        return pipeline

    return opening


def test_a_call_decodes_as_chosen_is_noted_and_keeps_its_tokens(opened, tmp_path):
    plain = tiny_pipeline().generate("a lake", method="ar", seed=5).tokens
    pipeline = opened()
    choice = pipeline.auto.choice(1, {})
    assert pipeline.check("a lake").method == choice.way.knobs["method"]
    assert pipeline.check("a lake", method="auto") == pipeline.check("a lake")
    made = pipeline.generate("a lake", seed=5)
    assert made.notes == (choice.words,) and made.notes[0].startswith("auto: ")
    (file,) = (tmp_path / "lantern_jax" / "tuned" / "notes").glob("*.json")
    # What notes say is followed, and the tokens are always the same.
    seen, other = set(), JACOBI if choice.way.point.passes else LED
    for best in (PLAIN, choice.way.point, other):
        content = json.loads(file.read_text())
        content |= {
            "ms": {"1": {",".join(map(str, p)): [1.0 if p == best else 9.0] for p in (PLAIN, *TOKENS)}}
        }
        file.write_text(json.dumps(content))
        again = opened()
        assert again.auto.choice(1, {}).way.point == best
        np.testing.assert_array_equal(again.generate("a lake", seed=5).tokens, plain)
        seen.add(again.check("a lake").method)
    assert seen == {"ar", "led", "jacobi"}
    for damaged in (b"", b"{", os.urandom(100)):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(opened().generate("a lake", seed=5).tokens, plain)


def test_few_pictures_are_decoded_one_after_the_other_where_a_batch_gains_little(opened, monkeypatch):
    """Where a batch gains much, there are more pictures, or a batch is asked for, they are decoded together."""

    def batch(count: int, share: float, **knobs) -> int | None:
        paces = lambda pictures, *_: SimpleNamespace(pace=1.0 if pictures == 1 else share * count)  # noqa: E731
        monkeypatch.setattr(pipeline.auto, "_expected", paces)
        return pipeline.tuning(count, **knobs).knobs.get("batch")

    pipeline = opened()
    assert [batch(count, 0.95) for count in (1, 2, 4, 5)] == [None, 1, 1, None]
    assert batch(2, 0.85) is None and batch(2, 0.95, batch=2) is None
    assert batch(2, 0.95) == 1
    assert pipeline.tuning(2).note == f"{pipeline.auto.choice(1, {}).words}; one picture after the other"
    assert pipeline.check("a lake", num=2).batch == 1
    # With the settings that were tuned for one picture, where there are any.
    key = Key.of(pipeline.checkpoint, pipeline.dtype, vars(pipeline.check("a lake")), 1)
    file = tuned.tuned_file(key)
    file.parent.mkdir(parents=True)
    file.write_text(Tuned(key, {"tree": "chain"}, "a tree", 1.5).to_json())
    pipeline = opened()
    assert batch(2, 0.85) is None and batch(2, 0.95) == 1
    found = pipeline.tuning(2)
    assert found.knobs == {"tree": "chain", "batch": 1} and found.file == file
    assert found.note.startswith("tuned: a tree, ") and found.note.endswith("; one picture after the other")


def test_nothing_is_chosen_for_no_pictures(opened):
    with refused("no prompts: give at least one"):
        opened().generate([])
    with refused("pictures 0 is not valid: give a whole number >= 1"):
        opened().tuning(0)


def test_costs_are_those_of_the_program_that_runs(opened, monkeypatch):
    """For three pictures it has four sequences, unless a batch has three."""
    made = opened().auto
    monkeypatch.setattr(made, "_devices", made._devices[:1])

    def of(pictures, batch=8):
        return made.costs(dataclasses.replace(KEY, batch=pictures), batch)

    assert of(3) == of(4) != of(3, 3) and of(8) == of(5) != of(4)


def test_nothing_is_chosen_for_calls_that_steer_or_relax_nor_noted_when_off(opened, tmp_path):
    pipeline, off = opened(), opened("off")
    for knobs in (
        {"rule": "near"},
        {"tree": "chain"},
        {"method": "jacobi"},
        {"window": 3},
        {"method": "near"},
    ):
        assert pipeline.auto.choice(1, knobs) is None and not pipeline.tuning(1, **knobs).knobs
        assert pipeline.check("a lake", **knobs) == off.check("a lake", **knobs)
    relaxed = dataclasses.replace(pipeline.checkpoint, defaults={"rule": "near", "guidance": 2.0})
    assert Pipeline(relaxed, None, Shelf.of("auto")).auto.choice(1, {}) is None
    assert off.auto.choice(1, {}) is None and not off.tuning(1).note
    off.generate("a lake", seed=5)
    assert not list(tmp_path.iterdir())


def test_a_window_with_other_guesses_is_not_noted_as_its_own(opened):
    pipeline = opened()
    for knobs, is_noted in (
        ({"method": "jacobi", "window": 3}, True),
        ({"method": "jacobi", "window": 3, "initial": "random"}, False),
        ({"method": "led", "window": 3, "mixture": [1, 0] * 4}, False),
        ({"method": "ar"}, True),
        ({"tree": "chain"}, True),
    ):
        assert (pipeline.auto.noting(pipeline.settings(knobs), 1) is not None) == is_noted, knobs


def test_of_many_choices_the_last_used_are_kept(opened, monkeypatch):
    """Clients of a server may give any temperature, and a new one every time."""
    monkeypatch.setattr(auto, "MOST_KEPT", 3)
    pipeline = opened()
    first = pipeline.auto.choice(1, {})
    for temperature in (0.5, 0.6, 0.7, 0.8):
        second = pipeline.auto.choice(1, {"temperature": temperature})
        assert pipeline.auto.choice(1, {}) is first, "it was used in between"
    assert pipeline.auto.choice(1, {"temperature": 0.8}) is second
    assert len(pipeline.auto._choices) == 3


def test_the_platforms_window_is_taken_where_expectations_are_alike(monkeypatch):
    """And never in place of one that was timed, or that is expected to be much better."""
    best, second = (way for way in chosen(costs(1, "h100"), {}, Known(), 1, 1024).ways[:2])
    timed = Known(ms={best.point: best.ms / best.tokens, PLAIN: best.ms / best.tokens * best.speedup})
    for share, known, taken in ((-0.01, Known(), second), (0.01, Known(), best), (-0.01, timed, best)):
        monkeypatch.setattr(choice, "_ALIKE", second.speedup / best.speedup + share)
        made = chosen(costs(1, "h100"), {}, known, 1, 1024, second.point)
        assert made.way.point == taken.point
