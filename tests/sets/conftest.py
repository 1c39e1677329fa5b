"""Fixtures shared by the tests of picture sets: the tiny checkpoint in place of any other, and a set."""

from pathlib import Path

import pytest

import lantern_jax.pipeline.pipeline
from tests.sets.making import make
from tests.tiny_checkpoint import tiny_pipeline


@pytest.fixture
def tiny_loaded(monkeypatch) -> None:
    """Any model is the tiny one, whose programs all tests share."""
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", lambda model, *_: tiny_pipeline())


@pytest.fixture(scope="package")
def whole(tmp_path_factory) -> Path:
    """A set made in one go."""
    directory = tmp_path_factory.mktemp("sets") / "whole"
    assert make(directory) == 14
    return directory
