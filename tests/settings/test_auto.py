"""``auto``: what it chooses where it was measured, and that nothing but the call and the platform decides."""

import dataclasses

import jax
import numpy as np
import pytest

from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS
from lantern_jax.decoding.drafting.jacobi import Jacobi
from lantern_jax.decoding.drafting.led import Led
from lantern_jax.decoding.drafting.plain import Plain
from lantern_jax.pipeline.pipeline import Pipeline, load
from lantern_jax.settings import auto
from lantern_jax.settings.auto import PLAIN, TOKENS, Expected, choose
from lantern_jax.settings.tuned import Found
from tests.refused import refused
from tests.tiny_checkpoint import sharing_programs, tiny_checkpoint, tiny_pipeline


@pytest.fixture
def opened(tiny_folder):
    return lambda tuned="auto": sharing_programs(load)(tiny_folder, tuned=tuned)


# Rounds in plain steps, docs/results.md and docs/methods.md: LlamaGen-XL, Chameleon-7B and the demo, H100 and H200.
@pytest.mark.parametrize(("itemsize", "sequences", "nodes", "measured"), [
    (2, 2, 18, 1.22), (2, 2, 18, 1.18), (2, 16, 14, 1.56), (2, 128, 14, 3.14), (4, 16, 16, 2.8), (4, 16, 56, 7.4),
])  # fmt: skip
def test_passes_cost_what_was_measured_on_an_h100(itemsize, sequences, nodes, measured, monkeypatch):
    monkeypatch.setattr(auto, "TOKENS", {f"jacobi:nodes={nodes}": 2.0})
    _, rows = choose("gpu", itemsize, sequences, {}, True)
    assert max(rows).cost == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("platform", "itemsize", "sequences", "method"), [
    ("gpu", 2, 2, "jacobi"), ("gpu", 2, 16, "jacobi"), ("gpu", 2, 128, "ar"), ("gpu", 4, 16, "ar"),
    ("cpu", 4, 2, "jacobi"), *(("cpu", 4, sequences, "ar") for sequences in (4, 8, 16, 32, 64, 128)),
])  # fmt: skip
def test_the_choice_is_what_was_measured_to_be_best(platform, itemsize, sequences, method):
    best, rows = choose(platform, itemsize, sequences, {}, True)
    assert best.method.partition(":")[0] == method
    assert rows == sorted(rows, key=lambda row: -row.speedup) and len(rows) == len(TOKENS) + 1


def test_a_checkpoint_brings_its_own_tokens_and_drafters():
    few = {"jacobi:nodes=31": 1.0, "led:nodes=25,refine=3": 9.0}
    assert choose("gpu", 2, 2, few, True)[0].method == "led:nodes=25,refine=3"
    assert not any("led" in row.method for row in choose("gpu", 2, 2, few, False)[1])
    expected = choose("gpu", 2, 2, {}, True)
    for wrong in ("9", None, 0.5, 40.0, float("nan"), [3]):
        assert choose("gpu", 2, 2, {"jacobi:nodes=31": wrong}, True) == expected


def test_a_call_decodes_as_chosen_and_keeps_its_tokens(opened, monkeypatch):
    plain, pipeline, seen = tiny_pipeline().generate("a lake", method="ar", seed=5).tokens, opened(), set()
    for method in ("ar", "led:nodes=5,refine=1", "jacobi:nodes=5"):
        best = PLAIN if method == "ar" else Expected(method, 5, 9.0, 1.0)
        monkeypatch.setattr(auto, "choose", lambda *_, best=best: (best, [best]))
        made = pipeline.generate("a lake", seed=5)
        assert made.notes == (best.words,) and made.notes[0].startswith("auto: ")
        np.testing.assert_array_equal(made.tokens, plain)
        assert pipeline.check("a lake", method="auto") == pipeline.check("a lake")
        seen.add(type(pipeline.check("a lake").drafting))
    assert seen == {Plain, Led, Jacobi}


def test_all_guesses_are_settings_with_as_many_nodes():
    pipeline = tiny_pipeline()
    for row in choose("gpu", 2, 2, {}, True)[1]:
        settings = pipeline.settings({"method": row.method})
        assert settings.keeps_tokens and settings.tree.num_nodes == row.nodes + 1


def test_nothing_is_chosen_for_calls_that_steer_or_relax(opened):
    pipeline, off = opened(), opened("off")
    for options in ({"rule": "near"}, {"drafting": "jacobi"}, {"coupling": "gumbel"}, {"method": "near"}):
        assert pipeline.tuning(1, **options) == Found()
        assert pipeline.check("a lake", **options) == off.check("a lake", **options)
    relaxed = dataclasses.replace(pipeline.checkpoint, defaults={"method": "near", "guidance": 2.0})
    assert Pipeline(relaxed, None, "auto").tuning(1) == off.tuning(1) == Found()
    with refused("no prompts: give at least one"):
        pipeline.generate([])
    with refused("pictures 0 is not valid: give a whole number >= 1"):
        pipeline.tuning(0)


def test_what_is_decoded_together_decides(opened, monkeypatch):
    """With guidance a picture has two sequences; groups of devices share a batch, those of a CPU its cores."""
    pipeline, seen = opened(), []
    monkeypatch.setattr(auto, "choose", lambda *given: seen.append(given) or (PLAIN, [PLAIN]))
    monkeypatch.setattr(pipeline.engine, "devices", np.tile(pipeline.engine.devices[:1], (2, 1)))
    for options in ({}, {"batch": 4}, {"guidance": 1}):
        pipeline.tuning(7, **options)
    pipeline.platform = "gpu"
    pipeline.tuning(7)
    assert [sequences for _, _, sequences, *_ in seen] == [14, 8, 7, 8]
    assert seen[0][0] == jax.default_backend() and seen[0][3] == tiny_checkpoint().metadata.get(
        TOKENS_PER_PASS, {}
    )
