"""Landscapes rendered once into a memory-mapped file, so that training does not wait for the renderer.

Axis letters: n pictures, A attributes of a scene.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from lantern_jax.io.files import new_file
from train.feature_store import map_array
from train.painter.landscapes import render_batch

CHUNK = 128


def rendered_chunks(seed: int, count: int, size: int, workers: int | None = None, start: int = 0):
    """Yields (first index, uint8 pictures [n, size, size, 3], int32 attributes [n, A]) for indices start..count-1.

    `workers` processes (None: one per core) render them by the same pure `render_batch`; a single chunk is rendered in
    this process.
    """
    firsts = range(start, count, CHUNK)
    parts = [np.arange(first, min(first + CHUNK, count)) for first in firsts]
    if len(parts) == 1:
        yield start, *render_batch(seed, parts[0], size)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context, initializer=_end_with_parent)
    try:
        with _interrupts_held_back():
            results = pool.map(partial(render_batch, seed, size=size), parts)
        for first, rendered in zip(firsts, results, strict=True):
            yield first, *rendered
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Starts the block's processes with Ctrl-C blocked, as a terminal sends it to all: this process ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Ends a process of the pool with its parent: it would otherwise wait for work forever."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def rendered_landscapes(path: Path, seed: int, count: int, size: int) -> np.ndarray:
    """Returns pictures 0..count-1 of a seed, uint8 [n, size, size, 3], read-only and memory-mapped.

    The first call renders them into a file at `path`, with seed, count and size in its name; a killed call leaves no
    file of that name.
    """
    path = Path(path)
    target = path.with_name(f"{path.name}_{seed}_{count}_{size}.npy")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shape = (count, size, size, 3)
        with new_file(target) as temporary:
            store = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            for first, pictures, _ in rendered_chunks(seed, count, size):
                store[first : first + len(pictures)] = pictures
            store.flush()
    return map_array(target)
