"""Layouts that a compiler chooses: parameters are put into them once, and no token changes."""

from functools import cache

import numpy as np
import pytest

from lantern_jax.engine import layouts
from lantern_jax.engine.engine import Engine
from lantern_jax.measuring.random_models import TINY, random_model

KNOBS = {"plain": {}, "eagle": {"drafting": "eagle"}, "window": {"drafting": "jacobi", "window": 4}}


def decoded(method, devices):
    knobs, model = KNOBS[method], random_model(TINY)
    recipe = model.recipe(np.float32)
    job = recipe.job(recipe.settings(knobs), plain=not knobs)
    engine = Engine(
        lambda where: model.read(np.dtype("float32"), where), devices=devices,
        read_drafter=lambda name, parameters, where: model.read_drafter(np.dtype("float32"), name, parameters, where),
    )  # fmt: skip
    run = engine.advance(engine.start(job, model.conditioning(2), seed=1), 3)
    run = engine.refill(run, np.array([0]), model.conditioning(1), np.array([7]))
    if len(engine.devices) == 1:
        # As many sequences, then more of them.
        run = engine.regroup(run, np.array([1, 0]))
        run = engine.regroup(engine.advance(run, 1), np.array([1, 0, 1]))
    run = engine.advance(run)
    assert run.done
    return engine.finish(run).tokens[:2], engine


@cache
def plain():
    """Tokens of every way on the shared noise, without chosen layouts."""
    tokens, engine = decoded("plain", "data=1,model=1")
    assert not engine.placement.chooses_layouts
    return tokens


# Each way of decoding and each mesh once; the others are their combinations.
ONCE = {"plain": "data=1,model=1", "window": "data=2,model=1", "eagle": "data=1,model=2"}


@pytest.mark.parametrize(("method", "devices"), [
    pytest.param(method, devices, marks=[] if devices == ONCE[method] else pytest.mark.exhaustive)
    for method in KNOBS for devices in ONCE.values()
])  # fmt: skip
def test_chosen_layouts_change_no_token(method, devices, monkeypatch):
    expected = plain()
    monkeypatch.setattr(layouts, "_PLATFORMS", ("cpu",))
    tokens, engine = decoded(method, devices)
    assert engine.placement.chooses_layouts
    np.testing.assert_array_equal(tokens, expected)
