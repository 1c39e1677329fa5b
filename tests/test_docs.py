"""The page on the architecture: its examples run, and what it names is there."""

import re
from pathlib import Path

import jax
import numpy as np

import lantern_jax
from tests.tiny_checkpoint import tiny_pipeline

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples_run(monkeypatch):
    """In order, as one program, with a tiny model in the demo's place."""
    monkeypatch.setattr(lantern_jax, "load", lambda model: tiny_pipeline(), raising=False)
    known: dict = {}
    for example in re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        exec(compile(example, PAGE.name, "exec"), known)
    run, pictures = known["run"], known["pictures"]
    assert run.done and pictures.shape == (2, 16, 16, 3)
    drafted, plain = known["drafted"], known["plain"]
    assert np.array_equal(drafted.tokens, plain.tokens)
    assert (known["near"].substituted > 0).all() and not drafted.substituted.any()
    # The model drafts for itself: each round accepts all that its four guesses may be.
    assert np.asarray(known["decoded"].accepted)[:, -1].tolist() == [12, 12]


def test_the_page_on_ones_own_model_runs(capsys):
    page = (ROOT / "docs" / "own_model.md").read_text(encoding="utf-8")
    known: dict = {}
    for example in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        # As on its readers' machines: the tests' own JAX is stricter.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            exec(compile(example, "own_model.md", "exec"), known)
    assert known["difference"] < 1e-4
    for name in ("window", "drafted"):
        assert np.array_equal(known[name].tokens, known["plain"].tokens)
        assert (known[name].rounds < known["plain"].rounds).all(), name


def test_files_it_names_are_there():
    folders = (ROOT, ROOT / "lantern_jax")
    names = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|[a-z_/]+/)`", TEXT)
    assert "decoding/loop.py" in names and "checkpoints/" in names
    for name in names:
        assert any((folder / name).exists() for folder in folders), name


def test_names_it_takes_from_the_package_are_public():
    names = re.findall(r"lantern_jax\.(\w+)", TEXT)
    assert "speculative_decode" in names
    assert set(names) <= set(lantern_jax.__all__)
