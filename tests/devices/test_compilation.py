"""Keeping compiled programs is the process's own choice, not the library's."""

import jax
import pytest

import lantern_jax
from lantern_jax.checkpoints.store import save
from lantern_jax.devices import compilation
from tests.tiny_checkpoint import tiny_checkpoint


def configuration() -> dict:
    return dict(jax.config.values)


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    """A process that configured no cache, whose user has an empty cache directory."""
    before = configuration()
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(compilation, "user_cache_directory", lambda: tmp_path / "cache")
    yield tmp_path / "cache"
    for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"):
        jax.config.update(name, before[name])
    compilation.compilation_cache.reset_cache()


def test_load_leaves_jax_as_it_is(no_cache, tmp_path):
    folder = save(tmp_path / "tiny", tiny_checkpoint())
    before = configuration()
    pipeline = lantern_jax.load(folder)
    pipeline.check(["a lake"])
    assert configuration() == before
    assert not no_cache.exists()
    assert lantern_jax.keep_compiled_programs() == no_cache / "lantern_jax" / "xla"
    assert configuration() != before, "the comparison sees nothing"
