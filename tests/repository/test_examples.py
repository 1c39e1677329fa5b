"""Every public name has an example, in its docstring or on a page that is executed, and what examples say is true."""

import doctest
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax.checkpoints.store import demo_directory, load_shapes
from lantern_jax.pipeline.pipeline import Pipeline
from tests.cases import exhaustive
from tests.repository.public import listed
from tests.tiny_checkpoint import tiny_pipeline

ROOT = Path(__file__).resolve().parents[2]
# Names that only a whole program can show: test_pages executes these.
ON_PAGES = {
    "METHODS": "docs/index.md",
    "load": "README.md",
    "autoregressive_decode": "docs/own_model.md",
    "speculative_decode": "docs/own_model.md",
}


@cache
def demo() -> Pipeline:
    """Returns the demo on one device, for all examples."""
    return Pipeline(load_shapes(demo_directory()), devices=jax.devices()[:1])


@cache
def examples() -> dict[str, list[doctest.DocTest]]:
    """Returns the examples of every public name, in its docstring and in its methods'."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = {"jax": jax, "jnp": jnp, "np": np, "lantern_jax": lantern_jax}
    found = {
        name: finder.find(getattr(import_module(home), name), name, globs=names) for home, name in listed()
    }
    return {name: [test for test in tests if test.examples] for name, tests in found.items()}


def draws(name: str) -> bool:
    """Tells whether its examples decode with the demo."""
    return any(".generate(" in test.docstring.partition("Example:")[2] for test in examples()[name])


def run(names: list[str]) -> str:
    """Returns what is wrong in the examples of these names."""
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    # As on its readers' machines: the tests' own JAX is stricter.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for name in names:
            for test in examples()[name]:
                runner.run(test, out=said.append)
    return "".join(said)


@pytest.fixture(autouse=True)
def where_examples_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern_jax, "load", lambda model: demo(), raising=False)


@pytest.mark.parametrize("name", sorted({name for _, name in listed()} - set(ON_PAGES)))
def test_examples_are_true(name):
    assert examples()[name], f"{name} has no example"
    if not draws(name):
        assert not run([name])


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [tiny_pipeline, exhaustive(demo)])
def test_examples_that_draw_are_true(monkeypatch, drawn):
    """With a tiny model, which compiles quickly, and with the demo; together, since they share what they compile."""
    monkeypatch.setattr(lantern_jax, "load", lambda model: drawn(), raising=False)
    names = [name for name in examples() if draws(name)]
    assert {"Pipeline", "Generation", "Statistics"} <= set(names)
    assert not run(names)


@pytest.mark.parametrize("name", ON_PAGES)
def test_pages_show_what_no_docstring_does(name):
    assert not examples()[name], f"{name} has an example of its own"
    page = (ROOT / ON_PAGES[name]).read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    assert re.search(rf"\b{name}\b", blocks, re.IGNORECASE)
