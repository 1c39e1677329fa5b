"""Models with numbers that are not finite: one line that names the part, and no picture."""

import jax
import numpy as np
import pytest

import lantern_jax.pipeline.pipeline
from tests.command import assert_refused
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
    "a layer of the target": ("target_params", "gate_up", np.nan, "target"),
    "an attention of the target": ("target_params", "qkv", -np.inf, "target"),
    "the target's head": ("target_params", "head", np.inf, "target"),
    "the VQ tokenizer": ("tokenizer_params", "decoder", np.nan, "tokenizer"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_parameter_is_named_and_nothing_is_written(case, tmp_path, monkeypatch, capsys):
    part, name, value, shown = case
    parts, whole = spoiled(part, name, value)
    pipeline = altered_pipeline(**parts)
    for knobs in ({}, {"tree": "none"}, {"batch": 1}):
        with pytest.raises(ValueError) as error:
            pipeline.generate(PROMPTS, **knobs)
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


def test_a_drafter_that_is_not_finite_costs_speed_only():
    ((config, params),) = tiny_checkpoint().drafters.values()
    params, _ = spoil_one(params, "gate_up", np.nan)
    broken = altered_pipeline(drafters={"eagle": (config, params)}).generate(PROMPTS, seed=6, compare=True)
    np.testing.assert_array_equal(broken.tokens, broken.plain.tokens)
    np.testing.assert_array_equal(broken.tokens, tiny_pipeline().generate(PROMPTS, seed=6).tokens)
    assert broken.statistics.rounds > tiny_pipeline().generate(PROMPTS, seed=6).statistics.rounds
