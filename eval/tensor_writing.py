"""Writing files of random weights, whole or in shards, without ever holding more than it takes.

Values depend on the seed and the tensor's name alone, so the same tensor is the same in every layout.
"""

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Shapes = Mapping[str, tuple[int, ...]]
SHARD_BYTES = 5_000_000_000
KINDS = ("safetensors", "bin")
_SAFETENSORS_NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}


def random_tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """float32 weights of a size that keeps activations finite: norms about 1, biases about 0.1, the rest by fan-in."""
    values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, dtype=np.float32)
    module, _, leaf = name.rpartition(".")
    if leaf == "bias":
        values *= np.float32(0.1)
    elif "norm" in module.rpartition(".")[2]:
        values = 1 + np.float32(0.1) * values
    else:
        values *= np.float32(1 / math.sqrt(max(1, math.prod(shape[1:]))))
    return values


@contextmanager
def new(path: Path) -> Iterator[Path]:
    """A name to write a file or folder under; it gets its own when all went well, and is removed when not.

    Raises:
        ValueError: there is something at ``path``.
    """
    if path.exists():
        raise ValueError(f"{path} exists: remove it or name another")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.rename(path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)


def write_safetensors(path: Path, shapes: Shapes, dtype: Any, seed: int = 0) -> None:
    """One file, written tensor by tensor."""
    dtype, end, header = np.dtype(dtype), 0, {}
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, shape in shapes.items():
            file.write(random_tensor(name, shape, seed).astype(dtype).reshape(-1).view(np.uint8))


def write_torch(
    path: Path,
    shapes: Shapes,
    dtype: Any,
    seed: int = 0,
    *,
    key: str | None = None,
    beside: Mapping[str, Any] | None = None,
) -> None:
    """A PyTorch file, made in memory: the state dict, or a dict with it under ``key`` and the entries of ``beside``."""
    import torch

    def tensor(name, shape):
        values = random_tensor(name, shape, seed).astype(dtype)
        if values.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)

    content: dict[str, Any] = {name: tensor(name, shape) for name, shape in shapes.items()}
    torch.save(content if key is None else {key: content, **(beside or {})}, path)


def write_folder(
    folder: Path,
    shapes: Shapes,
    dtype: Any,
    seed: int = 0,
    *,
    settings: Mapping[str, Any],
    kind: str = "safetensors",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """A folder as on the Hugging Face hub: ``config.json`` and the weights.

    Weights of more than ``shard_bytes`` are cut into shards with an index. Memory holds a shard at a time ("bin") or
    a tensor ("safetensors").
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of file {kind!r}: choose {' or '.join(KINDS)}")
    write, whole = (write_safetensors, "model") if kind == "safetensors" else (write_torch, "pytorch_model")
    with new(folder) as partial:
        partial.mkdir()
        (partial / "config.json").write_text(json.dumps(dict(settings), indent=2))
        sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, shape in shapes.items()}
        shards = _split(sizes, shard_bytes)
        if len(shards) == 1:
            write(partial / f"{whole}.{kind}", shapes, dtype, seed)
            return
        files = {f"{whole}-{i + 1:05d}-of-{len(shards):05d}.{kind}": names for i, names in enumerate(shards)}
        for file, names in files.items():
            write(partial / file, {name: shapes[name] for name in names}, dtype, seed)
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        (partial / f"{whole}.{kind}.index.json").write_text(json.dumps(index, indent=2))


def _split(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in their order, cut into shards of at most ``limit`` bytes (a larger tensor has its own)."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards
