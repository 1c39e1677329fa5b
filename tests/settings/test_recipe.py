"""Knobs that are reported to have no effect have none, and all others have one."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.decoding.methods import methods
from lantern_jax.decoding.rejection import Rejection
from lantern_jax.settings.recipe import Recipe, weak_drafter, without_effect
from tests.tiny_checkpoint import TARGET, drafters, tiny_checkpoint

KINDS = {kind: config for kind, (config, _) in drafters().items()}
RECIPE = Recipe(TARGET, KINDS, np.dtype(np.float32), codebook=tiny_checkpoint().codebook)
# A knob -> a value that is no method's and no default, and that fits every method that can take the knob.
OTHER = {
    "nodes": 5, "depth": 3, "frontier": 3, "children": 3, "ranking": "probability", "sharpness": 3.0, "threshold": 0.25,
    "echo": "on", "mixture": "1,0,1,0,1,0,1,0", "window": 7, "redraw": "shared", "initial": "mixed", "branches": 2,
    "levels": 1, "refine": 3, "ahead": 3, "k": 4, "delta": 0.25, "lam": 3.0, "tau": 2.5, "ratio": 3.0, "omega": 1.5,
    "epsilon": 0.5, "samples": 3, "path": "exact_first", "residual": "published", "top_k": 3, "top_p": 0.5,
    "drafting": "medusa",
}  # fmt: skip
BASES = [
    *({"method": name} for name in methods()),
    {"method": "echo", "ranking": "probability"},
    {"method": "gumbel", "echo": "on"},
    {"method": "led", "temperature": 0},
    {"method": "eagle", "temperature": 0},
    {"method": "jacobi", "tree": [[0], [0, 0]]},
    {"method": "jacobi", "levels": 2},
    {"method": "jacobi", "branches": 2},
]


def settings(knobs):
    defaults = {"guidance": 2.0, "tree": [[0], [0, 0], [0, 0, 0]]}
    return dataclasses.replace(RECIPE, defaults=defaults).settings(knobs, "cpu")


def parts(knobs):
    """Returns what a job is made of, in values that can be compared."""
    made = settings(knobs)
    if made.ranking == "probability":
        made = dataclasses.replace(made, tree=settings(knobs | {"sharpness": None}).tree)
    job = RECIPE.job(made)
    drafting = [
        (part.func, part.args) if isinstance(part, functools.partial) else part
        for part in vars(job.program.drafting).values()
    ]
    sampling = None if made.temperature == 0 else jax.tree.map(float, job.sampling)
    rule = (type(job.rule), [float(leaf) for leaf in jax.tree.leaves(job.rule)], job.rule.k)
    # At temperature 0 the longest path is taken, and no residual is drawn from; the strict rule has only one.
    coupling = None if made.temperature == 0 else job.program.coupling
    if isinstance(coupling, Rejection) and job.rule.is_strict:
        coupling = Rejection()
    return drafting, job.program.rows, coupling, rule, sampling, job.drafter


@pytest.mark.parametrize("base", BASES, ids=str)
def test_a_knob_is_idle_where_the_job_is_the_same(base):
    before, idle = parts(base), {}
    for name, value in OTHER.items():
        given = base | {name: value}
        if getattr(settings(base), name) == value:
            continue
        try:
            after = parts(given)
        except ValueError:
            continue  # It does not fit the others, which is reported too.
        idle[name] = after == before
        told = [line.split()[0] for line in without_effect(given, settings(given))]
        assert (name in told) == idle[name], (name, value)
    assert any(idle.values()) and (not all(idle.values()) or base.get("method") == "ar")


def test_a_drafter_that_guesses_nothing_is_pointed_out():
    for method in ("eagle", "led", "gumbel"):
        assert "1.03 tokens per pass: check that it was made for this model" in weak_drafter(
            settings({"method": method}), 1.03, 300
        )
        assert weak_drafter(settings({"method": method}), 1.2, 300) is None
        assert weak_drafter(settings({"method": method}), 1.0, 15) is None
    assert not any(
        weak_drafter(settings({"method": method}), 1.0, 300) for method in ("ar", "jacobi", "zipar")
    )


def test_the_command_reports_knobs_without_effect(tmp_path, tiny_demo, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["generate", "a lake", "--out", "a.png", "--method", "gumbel", "--tau", "2", "--temperature", "0"]
    assert main([*words, "--top-k", "5"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "lantern: --tau has no effect with rule strict" in said
    assert "lantern: --top-k has no effect with temperature 0" in said
