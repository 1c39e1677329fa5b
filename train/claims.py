"""Notes in working folders of all that determines their files, so that nothing is reused for anything else."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, write_file

CLAIM = "sources.json"


def claim(folder: Path, digests: Mapping[str, str]) -> None:
    """Notes what a folder's files are made from. Raises LanternError if an existing note says anything else."""
    path = folder / CLAIM
    if not path.is_file():
        write_file(path, json.dumps(digests) + "\n", parents=True)
    found = claimed(folder)
    other = [name for name in {**found, **digests} if found.get(name) != digests.get(name)]
    if other:
        raise LanternError(f"{folder} holds work on another {', '.join(other)}: name another --workdir")


def claimed(folder: Path) -> dict[str, str]:
    """Reads what `claim` noted about a folder; empty if there is no note."""
    path = folder / CLAIM
    return read_json(path, 2**20) if path.is_file() else {}


def parameters_digest(params: PyTree, dtype: Any = None) -> str:
    """Returns a short digest of all values of a parameter tree, but not of their shapes.

    Args:
        params: NumPy or JAX arrays, read leaf by leaf.
        dtype: what the values are cast to; None keeps each as it is.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        values = np.asarray(leaf)
        values = np.ascontiguousarray(values if dtype is None else values.astype(dtype, copy=False))
        digest.update(f"{jax.tree_util.keystr(path)} {values.dtype.name}".encode())
        digest.update(values.reshape(-1).view(np.uint8))
    return digest.hexdigest()[:16]
