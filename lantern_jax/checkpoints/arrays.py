"""Trees of arrays in safetensors files: an array's name is its path joined with dots, as in "target.params.x".

A tree is one file or, if it is large, several with an index, as on the Hugging Face hub. Files are read once, in
blocks, by several threads: one pass computes checksums, casts values and fills arrays, and an array goes where it
belongs as soon as its last block is there. Besides the result, memory holds a few blocks and the arrays in transit.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax.devices.partition import Where, put, sharding_at
from lantern_jax.models.quantization import is_fixed
from lantern_jax.tensors import checksums
from lantern_jax.tensors.safetensors_files import write_safetensors
from lantern_jax.tensors.stored_tensor import StoredTensor

# A larger file is split into shards of this size, as on the hub.
SHARD_BYTES = 5 * 10**9
# On devices that share the host's memory, JAX uses an array as it is if it begins at a multiple of this.
_ALIGNMENT = 64


def name_of(path: tuple) -> str:
    """Returns the name that files give to the array at this path in nested dicts."""
    return ".".join(key.key for key in path)


def write_arrays(
    directory: Path,
    stem: str,
    arrays: PyTree,
    report: Callable[[int], None] = lambda _: None,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, str]:
    """Writes a tree into a folder; returns {name: checksum} of the files.

    Args:
        stem: the beginning of the files' names.
        arrays: nested dicts of what ``write_safetensors`` takes.
        report: called with the number of bytes written since the last call.
        shard_bytes: the most bytes that a file holds; a single array may have more.

    Raises:
        OSError, LanternError: as ``write_safetensors``.
    """
    leaves = jax.tree_util.tree_flatten_with_path(arrays)[0]
    shards = list(_shards({name_of(path): leaf for path, leaf in leaves}, shard_bytes))
    if len(shards) == 1:
        name = f"{stem}.safetensors"
        return {name: write_safetensors(directory / name, shards[0], report)}
    sums, places = {}, {}
    for number, shard in enumerate(shards, 1):
        name = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
        sums[name] = write_safetensors(directory / name, shard, report)
        places |= dict.fromkeys(shard, name)
    total = sum(leaf.nbytes for shard in shards for leaf in shard.values())
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1) + "\n"
    name = f"{stem}.safetensors.index.json"
    (directory / name).write_text(index)
    return sums | {name: checksums.file_checksum(directory / name)}


def _shards(tensors: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    shard, size = {}, 0
    for name, leaf in tensors.items():
        if shard and size + leaf.nbytes > most:
            yield shard
            shard, size = {}, 0
        shard[name] = leaf
        size += leaf.nbytes
    yield shard


def read_arrays(
    tensors: Mapping[str, StoredTensor],
    shapes: PyTree,
    dtypes: Mapping[str, Any],
    sharding: Where | None,
    sums: Mapping[str, str],
) -> PyTree:
    """Reads a tree of arrays.

    Args:
        tensors: the stored tensors by name.
        shapes: nested dicts with anything in place of every wanted array; no others are read.
        dtypes: the dtype of the arrays under a top-level key; None keeps the stored one. Eight-bit weights and their
            scales are read as stored.
        sharding: where JAX arrays go, straight from the files; None for NumPy arrays.
        sums: the files' checksums, by their names.

    Raises:
        LanternError: a file is damaged.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    paths = {name_of(path): path for path, _ in leaves}
    files: dict[Path, dict[str, StoredTensor]] = {}
    for name in paths:
        files.setdefault(tensors[name].place[0], {})[name] = tensors[name]
    done = {}
    for file, wanted in files.items():
        made = {name: _dtype(paths[name], tensor, dtypes) for name, tensor in wanted.items()}
        for name, array in _read_file(file, wanted, made, sums[file.name]):
            if sharding is not None:
                # Without waiting, an array that is still being copied would stay in memory beside the next ones.
                array = put(array, sharding_at(sharding, paths[name], array.shape)).block_until_ready()
            done[name] = array
    return jax.tree.unflatten(structure, [done[name] for name in paths])


def _dtype(path: tuple, tensor: StoredTensor, dtypes: Mapping[str, Any]) -> np.dtype:
    dtype = dtypes.get(path[0].key)
    return tensor.dtype if dtype is None or is_fixed(path, tensor.dtype) else jnp.dtype(dtype)


def _read_file(
    path: Path, tensors: Mapping[str, StoredTensor], dtypes: Mapping[str, np.dtype], expected: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Reads tensors of one file in these dtypes; reads the whole file if this process has not verified it yet."""
    right = checksums.is_right(path, expected)
    coming = deque(sorted(tensors, key=lambda name: tensors[name].place[1]))
    spans = {name: (tensors[name].place[1], tensors[name].place[1] + tensors[name].nbytes) for name in coming}
    rooms: dict[str, np.ndarray] = {}
    running, sums = deque(), []

    def finished() -> Iterator[tuple[str, np.ndarray]]:
        stop, block = running.popleft()
        sums.append(block.result())
        for name in [name for name in rooms if spans[name][1] <= stop]:
            yield name, rooms.pop(name).reshape(tensors[name].shape)

    with ThreadPoolExecutor(checksums.THREADS) as threads:
        for start in _starts(spans.values()) if right else range(0, path.stat().st_size, checksums.BLOCK):
            stop = start + checksums.BLOCK
            while coming and spans[coming[0]][0] < stop:
                name = coming.popleft()
                rooms[name] = _aligned(tensors[name].shape, dtypes[name])
            targets = [(spans[name][0], room, tensors[name].dtype) for name, room in rooms.items()]
            running.append((stop, threads.submit(checksums.read_block, path, start, targets)))
            if len(running) > checksums.THREADS + 2:
                yield from finished()
        while running:
            yield from finished()
    for name in coming:  # They have no bytes, and may lie at the end.
        yield name, np.empty(tensors[name].shape, dtypes[name])
    if not right:
        checksums.found_right(path, expected, checksums.checksum_of(sums))


def _starts(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the first bytes of the blocks that hold any byte of these spans."""
    size = checksums.BLOCK
    return sorted({block * size for begin, end in spans for block in range(begin // size, -(-end // size))})


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocates an aligned array, its numbers in a row."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(count + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    return room[begin : begin + count].view(dtype)
