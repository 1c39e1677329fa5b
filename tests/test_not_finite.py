"""Models with numbers that are not finite: one line that names the part, and no picture."""

import dataclasses

import jax
import numpy as np
import pytest

import lantern_jax.pipeline.pipeline
from lantern_jax.pipeline.pipeline import Pipeline
from tests.command import assert_refused
from tests.refused import refused
from tests.tiny_checkpoint import TOKENS, altered_pipeline, tiny_checkpoint, tiny_pipeline

PROMPTS = ["a lake", "a foggy forest", "snowy mountains"]


def spoiled(part: str, name: str, value: float):
    """Replaces one value of a part's parameters; returns them by the part's name, and the parameter's whole name."""
    params, whole = spoil_one(getattr(tiny_checkpoint(), part), name, value)
    return {part: params}, whole


def spoil_one(params, name: str, value: float):
    """Replaces one value of the first parameter of that name; returns all parameters and its whole name."""
    found = []

    def spoil(path, leaf):
        whole = ".".join(str(key.key) for key in path)
        if name not in whole or found:
            return leaf
        found.append(whole)
        leaf = np.array(leaf)
        leaf.reshape(-1)[leaf.size // 2] = value
        return leaf

    params = jax.tree_util.tree_map_with_path(spoil, params)
    assert found, f"no parameter {name}"
    return params, found[0]


CASES = {
    "an attention of the target": ("target_params", "qkv", -np.inf, "target"),
    "the target's head": ("target_params", "head", np.inf, "target"),
    "the VQ tokenizer": ("tokenizer_params", "decoder", np.nan, "tokenizer"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_parameter_is_named_and_nothing_is_written(case, tmp_path, monkeypatch, capsys):
    part, name, value, shown = case
    parts, whole = spoiled(part, name, value)
    pipeline = altered_pipeline(**parts)
    for options in ({}, {"method": "ar"}):
        with pytest.raises(ValueError) as error:
            pipeline.generate(PROMPTS, **options)
        assert f"the {shown}'s parameter {whole} " in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=shown):
        list(pipeline.iterate(PROMPTS))
    if shown == "tokenizer":
        with pytest.raises(ValueError, match=whole):
            pipeline.draw(np.zeros(TOKENS, int))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", lambda *_, **__: pipeline)
    monkeypatch.setattr(lantern_jax.devices.compilation, "keep_compiled_programs", lambda: None)
    assert whole in assert_refused(["generate", *PROMPTS, "--out", "many/"], capsys)


def test_what_float16_cannot_hold_is_no_damage():
    part, whole = spoiled("target_params", "gate_up", 1e6)
    part = jax.tree.map(jax.numpy.asarray, part)
    pipeline = Pipeline(dataclasses.replace(tiny_checkpoint(), **part), "float16", devices=jax.devices()[:1])
    with refused(f"float16 cannot hold the target's parameter {whole}: give bfloat16 or float32 as dtype"):
        pipeline.generate("a lake", method="ar")


def test_a_picture_with_wrong_pixels_is_named_where_a_set_stops(tmp_path, monkeypatch, capsys):
    params, whole = spoil_one(tiny_checkpoint().tokenizer_params, "codebook", np.nan)
    bad = np.flatnonzero(np.isnan(params["params"]["codebook"]).any(axis=1))
    tokens = tiny_pipeline().generate(PROMPTS, seed=7, method="ar").tokens
    # Without that code in it a picture is sound.
    wrong = np.flatnonzero(np.isin(tokens, bad).any(axis=1)).tolist()
    assert 0 < len(wrong) < len(PROMPTS)
    monkeypatch.setattr(
        lantern_jax.pipeline.pipeline, "load", lambda *_, **__: altered_pipeline(tokenizer_params=params)
    )
    monkeypatch.setattr(lantern_jax.devices.compilation, "keep_compiled_programs", lambda: None)
    monkeypatch.setattr(lantern_jax.apps.sets.opening, "checkpoint_digest", lambda _: "", raising=False)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = f"set --prompts {tmp_path}/prompts.txt --out {tmp_path}/set --seed 7 --method ar".split()
    said = assert_refused(words, capsys)
    assert f"the pixels of picture {', '.join(map(str, wrong))} are not finite: " in said and whole in said
    assert said.endswith("; the set stops here, and what was made stays\n")


def test_a_drafter_that_is_not_finite_costs_speed_only():
    ((config, params),) = tiny_checkpoint().drafters.values()
    params, _ = spoil_one(params, "gate_up", np.nan)
    broken = altered_pipeline(drafters={"eagle": (config, params)}).generate(PROMPTS, seed=6, compare=True)
    np.testing.assert_array_equal(broken.tokens, broken.plain.tokens)
    np.testing.assert_array_equal(broken.tokens, tiny_pipeline().generate(PROMPTS, seed=6).tokens)
    assert broken.statistics.rounds > tiny_pipeline().generate(PROMPTS, seed=6).statistics.rounds
