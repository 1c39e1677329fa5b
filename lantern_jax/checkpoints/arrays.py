"""Trees of arrays in safetensors files: an array's name is its path joined with dots, as in "target.params.x".

A tree is one file or, if it is large, several with an index, as on the Hugging Face hub. Several threads read and cast
arrays, and each goes where it belongs as soon as it is there: memory holds the result and the arrays in transit.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax.devices.partition import Where, format_at, put
from lantern_jax.models.quantization import is_fixed
from lantern_jax.tensors.safetensors_files import INDEX_SUFFIX, write_safetensors
from lantern_jax.tensors.stored_tensor import StoredTensor

# A larger file is split into shards of this size, as on the hub.
SHARD_BYTES = 5 * 10**9
_THREADS = min(8, os.cpu_count() or 1)


def name_of(path: tuple) -> str:
    """Returns the name that files give to the array at this path in nested dicts."""
    return ".".join(key.key for key in path)


def write_arrays(
    directory: Path,
    stem: str,
    arrays: PyTree,
    report: Callable[[int], None] = lambda _: None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a tree into a folder.

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
        write_safetensors(directory / f"{stem}.safetensors", shards[0], report)
        return
    places = {}
    for number, shard in enumerate(shards, 1):
        name = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(directory / name, shard, report)
        places |= dict.fromkeys(shard, name)
    total = sum(leaf.nbytes for shard in shards for leaf in shard.values())
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1) + "\n"
    (directory / f"{stem}.safetensors{INDEX_SUFFIX}").write_text(index)


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
) -> PyTree:
    """Reads a tree of arrays.

    Args:
        tensors: the stored tensors by name.
        shapes: nested dicts with anything in place of every wanted array; no others are read.
        dtypes: the dtype of the arrays under a top-level key; None keeps the stored one. Eight-bit weights and their
            scales are read as stored.
        sharding: where JAX arrays go, straight from the files; None for NumPy arrays.

    Raises:
        LanternError: a file cannot be read.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)

    def read(path: tuple) -> np.ndarray:
        tensor = tensors[name_of(path)]
        with np.errstate(all="ignore"):
            return np.asarray(tensor, _dtype(path, tensor, dtypes))

    done = []
    for (path, _), array in zip(leaves, _ahead(read, [path for path, _ in leaves]), strict=True):
        if sharding is not None:
            # Without waiting, an array that is still being copied would stay in memory beside the next ones.
            array = put(array, format_at(sharding, path, array.shape)).block_until_ready()
        done.append(array)
    return jax.tree.unflatten(structure, done)


def _ahead(read: Callable[[tuple], np.ndarray], paths: Sequence[tuple]) -> Iterator[np.ndarray]:
    """Yields what is read at each path, a few ahead of what is taken."""
    coming = deque()
    with ThreadPoolExecutor(_THREADS) as threads:
        for path in paths:
            coming.append(threads.submit(read, path))
            if len(coming) > _THREADS:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _dtype(path: tuple, tensor: StoredTensor, dtypes: Mapping[str, Any]) -> np.dtype:
    dtype = dtypes.get(path[0].key)
    return tensor.dtype if dtype is None or is_fixed(path, tensor.dtype) else jnp.dtype(dtype)
