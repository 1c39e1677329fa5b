"""Layouts that a compiler chooses: parameters are put into them once, and no token changes."""

from functools import cache, partial

import jax
import numpy as np
import pytest

from lantern_jax.apps.measuring.random_models import TINY, random_model
from lantern_jax.engine import layouts
from lantern_jax.engine.engine import Engine

METHODS = {"plain": "ar", "eagle": "gumbel:tree=0", "window": "jacobi:window=4"}


def prepared(method, devices):
    model = random_model(TINY)
    recipe = model.recipe(np.float32)
    job = recipe.job(recipe.settings({"method": METHODS[method]}))
    engine = Engine(
        lambda where: model.read(np.dtype("float32"), where), devices=devices,
        read_drafter=lambda name, parameters, where: model.read_drafter(np.dtype("float32"), name, parameters, where),
    )  # fmt: skip
    return model, job, engine


def decoded(method, devices):
    model, job, engine = prepared(method, devices)
    run = engine.advance(engine.start(job, model.conditioning(2), seed=1), 3)
    run = engine.refill(run, np.array([0]), model.conditioning(1), np.array([7]))
    if devices == "data=1,model=1" and engine.placement.chooses_layouts:
        # As many sequences as before, then more.
        run = engine.regroup(run, np.array([1, 0]))
        run = engine.regroup(engine.advance(run, 1), np.array([1, 0, 1]))
    run = engine.advance(run)
    assert run.done
    return engine.finish(run).tokens[:2], engine


@cache
def plain():
    """Returns the tokens of every method on the shared noise, without chosen layouts."""
    tokens, engine = decoded("plain", "data=1,model=1")
    assert not engine.placement.chooses_layouts
    return tokens


# The last test has several groups of devices.
QUICK = {("eagle", "data=1,model=1")}


@pytest.mark.parametrize(("method", "devices"), [
    pytest.param(method, devices, marks=[] if (method, devices) in QUICK else pytest.mark.exhaustive)
    for method in METHODS for devices in ("data=1,model=1", "data=2,model=1", "data=1,model=2")
])  # fmt: skip
def test_chosen_layouts_change_no_token(method, devices, monkeypatch):
    expected = plain()
    monkeypatch.setattr(layouts, "_PLATFORMS", ("cpu",))
    tokens, engine = decoded(method, devices)
    assert engine.placement.chooses_layouts
    np.testing.assert_array_equal(tokens, expected)


def choosing_by_devices(inputs, state, laid, choosing=layouts.choosing):
    """Chooses different layouts for one device and for several, and for target and drafter, though they share a head.

    A CPU's compiler always chooses the same.
    """
    arguments, options = choosing(inputs, state, laid)

    def chosen(is_target, format, leaf):
        if format.layout is not layouts.Layout.AUTO:
            return format
        axes, is_one = tuple(range(leaf.ndim)), len(format.sharding.device_set) == 1
        return layouts.Format(layouts.Layout(axes[::-1] if is_one == is_target else axes), format.sharding)

    wanted, *others = options["formats"]
    parts = {
        name: jax.tree.map(partial(chosen, is_target), getattr(wanted, name), getattr(arguments[0], name))
        for name, is_target in (("target_params", True), ("drafting_params", False))
    }
    return arguments, options | {"formats": (wanted.replace(**parts), *others)}


def test_parameters_return_to_the_layouts_of_the_devices_in_use(monkeypatch):
    monkeypatch.setattr(layouts, "_PLATFORMS", ("cpu",))
    monkeypatch.setattr(layouts, "choosing", choosing_by_devices)
    model, job, engine = prepared("eagle", "data=2,model=1")
    rows, lies = [], []
    for count in (1, 2, 1):
        run = engine.advance(engine.start(job, model.conditioning(count), seed=1))
        rows.append(engine.finish(run).tokens[0])
        lies.append(
            [leaf.format for leaf in jax.tree.leaves((run.inputs.target_params, run.inputs.drafting_params))]
        )
    np.testing.assert_array_equal(rows[1:], rows[:-1])
    assert lies[0] == lies[2] and len(engine.programs) == 4
    assert [format.layout for format in lies[0]] != [format.layout for format in lies[1]]
