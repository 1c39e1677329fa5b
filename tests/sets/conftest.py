"""What the tests of picture sets share: the tiny checkpoint, saved once, and in the place of any."""

from pathlib import Path

import pytest

import lantern_jax.pipeline.pipeline
from lantern_jax.checkpoints.store import save
from tests.tiny_checkpoint import tiny_checkpoint, tiny_pipeline


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("saved") / "tiny", tiny_checkpoint())


@pytest.fixture
def tiny_loaded(monkeypatch) -> None:
    """Any model is the tiny one, whose programs all tests share."""
    monkeypatch.setattr(
        lantern_jax.pipeline.pipeline, "load", lambda model, dtype=None, mesh=None: tiny_pipeline()
    )
