"""Compiling ahead of time, with timing, and keeping compiled programs between runs."""

import contextlib
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from lantern_jax.devices.partition import outside_mesh
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_writable

# How many programs are being compiled now, and how many of them JAX's cache must leave alone.
_COMPILING, _APART = "compiling", "apart"
_counts, _counting = Counter(), threading.Lock()
# Whether XLA tries every tiling for GPUs.
_searches = False


def user_cache_directory() -> Path:
    """Returns the directory of this user's caches on this system."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else _home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")


def _home() -> Path:
    """Returns the user's home; if there is none, as in some containers, a path below which nothing can be kept."""
    try:
        return Path.home()
    # In a shared folder others could put programs that would then run here.
    except RuntimeError:
        return Path(os.devnull)


def keep_compiled_programs() -> Path | None:
    """Makes JAX keep compiled programs in the user's cache directory; returns where they are kept.

    A directory that is configured already is left alone. If none can be written, or JAX's cache is switched off,
    nothing changes and the result is None.

    Example:
        >>> directory = lantern_jax.keep_compiled_programs()  # ~/.cache/lantern_jax/xla on Linux
    """
    configured = jax.config.jax_compilation_cache_dir
    if configured:
        return Path(configured)
    if not jax.config.jax_enable_compilation_cache:
        return None
    try:
        directory = user_cache_directory() / "lantern_jax" / "xla"
        directory.mkdir(parents=True, exist_ok=True)
        check_writable(directory)
    except (OSError, LanternError):
        return None
    # Later failures, from a full disk or a damaged file, are silent too: JAX would print many lines.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
    # This resets the cache, since a program may already have been compiled.
    _set({"jax_compilation_cache_dir": str(directory), "jax_persistent_cache_min_compile_time_secs": 0.0})
    return directory


def apart(wanted: bool) -> AbstractContextManager[None]:
    """Keeps JAX's cache, if that is wanted, from touching programs inside a block: a CPU program loaded from it cannot
    be serialised again.
    """
    return _counted(_APART, wanted)


@contextlib.contextmanager
def _counted(what: str, more: int = 1) -> Iterator[None]:
    _count(what, more)
    try:
        yield
    finally:
        _count(what, -more)


def _count(what: str, more: int) -> None:
    """Switches JAX's cache off with the first block apart and on after the last: several threads may be in such."""
    with _counting:
        before = _counts[_APART]
        _counts[what] += more
        if bool(before) != bool(_counts[_APART]):
            _set({"jax_enable_compilation_cache": not _counts[_APART]})


def _set(options: dict[str, Any]) -> None:
    for name, value in options.items():
        jax.config.update(name, value)
    # JAX decides once whether there is a cache.
    compilation_cache.reset_cache()


def is_compiling() -> bool:
    """Tells whether a thread of this process is compiling a program."""
    return _counts[_COMPILING] > 0


@outside_mesh()
def compile_ahead(
    function: Callable, *arguments: Any, donate: str | None = None, results: Any = None, repeats: bool = True
) -> tuple[Callable, float]:
    """Compiles ``function`` for arguments like these; returns the program and the seconds that took.

    Random numbers are JAX's default ones, however JAX is configured.

    Args:
        donate: the name of an argument whose memory the results may take; a call uses it up.
        results: shardings or formats of the results; None leaves that to the compiler.
        repeats: whether it runs more than once per picture: if not, it is compiled faster.
    """
    start = time.perf_counter()
    jitted = jax.jit(function, donate_argnames=donate, out_shardings=results)
    with _counted(_COMPILING), jax.threefry_partitionable(True):
        lowered = jitted.lower(*arguments)
        compiled = lowered.compile(compiler_options=options(jax.default_backend(), repeats))
    return compiled, time.perf_counter() - start


def search_tilings() -> None:
    """Makes XLA try every tiling for the programs that decode on GPUs, from now on in this process.

    On an H100 a step of LlamaGen-XL took 1.23 ms in place of 1.39 and a window 1.57 in place of 1.71, and compiling 156
    seconds in place of 15, once: compiled programs are kept. Other devices compile as before.
    """
    global _searches
    _searches = True


def options(platform: str, repeats: bool) -> dict[str, Any]:
    """Returns XLA's options for a program, except those that ``XLA_FLAGS`` names.

    Args:
        platform: cpu, gpu or tpu.
        repeats: as for ``compile_ahead``.
    """
    made: dict[str, Any] = {}
    if platform == "cpu":
        # XLA has LLVM generate machine code in 32 parallel parts, each with work of its own.
        made = {"xla_cpu_parallel_codegen_split_count": min(32, 2 * (os.cpu_count() or 1))}
        made |= {} if repeats else {"xla_backend_optimization_level": 1}
    elif platform == "gpu" and repeats and _searches:
        made = {"xla_gpu_exhaustive_tiling_search": True}
    named = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in made.items() if name not in named}


def run_timed(program: Callable, *arguments: Any) -> tuple[Any, float]:
    """Runs a program to its end; returns its results and the seconds it took."""
    start = time.perf_counter()
    result = jax.block_until_ready(program(*arguments))
    return result, time.perf_counter() - start
