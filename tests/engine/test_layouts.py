"""Layouts of parameters and caches, as on TPUs: every program takes them as they lie, and no token changes."""

import numpy as np
import pytest

from lantern_jax.apps.measuring.random_models import TINY, random_model
from lantern_jax.devices import partition
from lantern_jax.engine.engine import Engine

FLOAT32 = np.dtype("float32")


def decoded():
    """Returns the tokens of two pictures that were refilled and regrouped, and how a kernel and a cache lay."""
    model = random_model(TINY)
    recipe = model.recipe(FLOAT32)
    engine = Engine(
        lambda where: model.read(FLOAT32, where), devices="data=1",
        read_drafter=lambda name, parameters, where: model.read_drafter(FLOAT32, name, parameters, where),
    )  # fmt: skip
    job = recipe.job(recipe.settings({"method": "gumbel:tree=0"}))
    run = engine.advance(engine.start(job, model.conditioning(2), seed=1), 3)
    run = engine.refill(run, np.array([0]), model.conditioning(1), np.array([7]))
    # As many sequences as before, then more.
    run = engine.regroup(run, np.array([1, 0]))
    run = engine.regroup(engine.advance(run, 1), np.array([1, 0, 1]))
    run = engine.advance(run)
    kernel = engine.parameters.target["params"]["transformer"]["layer_0"]["qkv"]["kernel"]
    arrays = kernel, run.state.cache.layers[0][0]
    return engine.finish(run).tokens[:2], [array.format.layout.major_to_minor for array in arrays]


@pytest.mark.slow
def test_chosen_layouts_change_no_token(monkeypatch):
    expected, usual = decoded()
    monkeypatch.setattr(partition, "_TILED", ("cpu",))
    monkeypatch.setattr(partition, "_LANES", 1)
    tokens, lies = decoded()
    np.testing.assert_array_equal(tokens, expected)
    assert usual == [(0, 1, 2, 3), (0, 1, 2, 3, 4)] and lies == [(1, 2, 0, 3), (0, 1, 2, 3, 4)]
