"""Keeping compiled programs is the process's own choice, not the library's."""

from pathlib import Path

import jax
import numpy as np
import pytest

import lantern_jax
from lantern_jax.devices import compilation, kept
from lantern_jax.devices.compilation import user_cache_directory


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


def test_programs_are_kept_only_on_request(no_cache, tiny_folder):
    before = configuration()
    lantern_jax.load(tiny_folder).check(["a lake"])
    assert configuration() == before, "loading a model changes nothing"
    assert not no_cache.exists()
    for _ in range(2):
        assert lantern_jax.keep_compiled_programs() == no_cache / "lantern_jax" / "xla"
        assert configuration() != before, "the comparison sees nothing"
    compiled, seconds = compilation.compile_ahead(lambda x: x * 3, np.float32(2))
    assert compiled(np.float32(2)) == 6 and seconds > 0
    assert any((no_cache / "lantern_jax" / "xla").iterdir())


def test_a_configured_cache_is_left_alone_and_an_unwritable_one_does_no_harm(no_cache, tmp_path):
    no_cache.write_text("")
    assert compilation.keep_compiled_programs() is None
    assert jax.config.jax_compilation_cache_dir is None
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert compilation.keep_compiled_programs() == tmp_path / "own"


def test_users_cache_directories(monkeypatch):
    for platform, name, value, expected in (
        ("linux", "XDG_CACHE_HOME", "/xdg", Path("/xdg")), ("linux", "XDG_CACHE_HOME", "", Path.home() / ".cache"),
        ("darwin", "XDG_CACHE_HOME", "", Path.home() / "Library" / "Caches"),
        ("win32", "LOCALAPPDATA", "/local", Path("/local")),
    ):  # fmt: skip
        monkeypatch.setattr(compilation.sys, "platform", platform)
        monkeypatch.setenv(name, value)
        assert compilation.user_cache_directory() == expected


def test_without_a_home_nothing_is_kept(monkeypatch):
    """As in a container whose user has no name."""

    def none():
        raise RuntimeError("Could not determine home directory.")

    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(compilation.Path, "home", none)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        assert compilation.keep_compiled_programs() is None
        jax.config.update("jax_compilation_cache_dir", str(user_cache_directory() / "lantern_jax" / "xla"))
        assert kept.place_of(1) is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_programs_are_compiled_with_options_for_their_platform_and_flags_win(monkeypatch):
    """On CPUs those that run once are compiled faster; on GPUs those that repeat have every tiling tried if asked."""
    parts, level = "xla_cpu_parallel_codegen_split_count", "xla_backend_optimization_level"
    monkeypatch.setattr(compilation.os, "cpu_count", lambda: 2)
    for flags, once in (
        ("", {parts: 4, level: 1}),
        (f"--{level}=3", {parts: 4}),
        (f"--{level}=3 --{parts}=1", {}),
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert compilation.options("cpu", False) == once
        assert compilation.options("cpu", True) == {name: 4 for name in once if name == parts}
    tiling = "xla_gpu_exhaustive_tiling_search"
    monkeypatch.setattr(compilation, "_searches", False)
    assert compilation.options("gpu", True) == {}
    compilation.search_tilings()
    found = [
        compilation.options(platform, repeats) for platform in ("gpu", "tpu") for repeats in (True, False)
    ]
    assert found == [{tiling: True}, {}, {}, {}] and tiling not in compilation.options("cpu", True)
    monkeypatch.setenv("XLA_FLAGS", f"--{tiling}=false")
    assert compilation.options("gpu", True) == {}
