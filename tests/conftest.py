"""Strictness and devices for every test: set here once, before JAX starts."""

import os
from pathlib import Path

from tests.quick_compilation import QUICK_COMPILATION

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8", *QUICK_COMPILATION]
)
# The workers of a run share what they compile, with each other, with programs they start and with later runs.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "xla")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import gc
import time

import jax
import numpy as np
import pytest

from lantern_jax.apps.terminal import terminal
from lantern_jax.kernels import ways

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# No operation of a program names the lines that made it: lowering them takes a tenth of the tests' time.
jax.config.update("jax_traceback_in_locations_limit", 0)

# What is traced lives long, so collections that look for cycles in all of it are made rare.
gc.set_threshold(100_000, 50, 100)

TOLERANCE = 2e-4


def pytest_addoption(parser):
    parser.addoption("--golden-dir", default=None, help="folder of golden cases (default: tests/golden)")


class MemoryMaps:
    """Every compiled program holds many memory maps, and the kernel allows a process some 65,000."""

    path = Path("/proc/self/maps")
    most = 45_000
    # Counting takes a while itself: seconds of tests between two counts.
    pause, counted = 10.0, 0.0

    def keep_few(self) -> None:
        """Drops programs when there are too many; not again soon where tests hold on to theirs."""
        if time.monotonic() - self.counted > self.pause:
            if self.count() > self.most:
                jax.clear_caches()
                gc.collect()
                self.most = max(45_000, self.count() + 5_000)
            self.counted = time.monotonic()

    def count(self) -> int:
        return self.path.read_bytes().count(b"\n") if self.path.exists() else 0


MEMORY_MAPS = MemoryMaps()


@pytest.fixture(scope="session", autouse=True)
def traced_for_this_machine():
    """Traces no other platforms' branches: tests of those name their platform (tests/lowering.py)."""
    with ways.traced_on("cpu"):
        yield


@pytest.fixture(autouse=True)
def few_memory_maps():
    yield
    MEMORY_MAPS.keep_few()


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    """Keeps what slow commands say about their work out of what tests read."""
    monkeypatch.setattr(terminal, "FIRST", 3600.0)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """Saves the tiny checkpoint once for all tests, which leave it as it is."""
    from lantern_jax.checkpoints.store import save
    from tests.tiny_checkpoint import tiny_checkpoint

    return Path(save(tmp_path_factory.mktemp("tiny") / "tiny", tiny_checkpoint()))


@pytest.fixture
def tiny_demo(monkeypatch):
    """Puts the tiny pipeline in place of any that is loaded, by the command or by a user."""
    import lantern_jax
    from lantern_jax.pipeline import pipeline
    from tests.tiny_checkpoint import tiny_pipeline

    # In this order: the package's name is found in the module, and put back as it was found.
    monkeypatch.setattr(lantern_jax, "load", lambda *_, **__: tiny_pipeline(), raising=False)
    monkeypatch.setattr(pipeline, "load", lambda *_, **__: tiny_pipeline())
    return tiny_pipeline()


@pytest.fixture
def assert_close():
    """Returns a check that compares two trees of float arrays with the one tolerance of the golden cases."""

    def check(actual, expected, tolerance=TOLERANCE):
        jax.tree.map(
            lambda a, e: np.testing.assert_allclose(np.asarray(a), np.asarray(e), tolerance, tolerance),
            actual,
            expected,
        )

    return check
