"""Safetensors files: the header's length (8 bytes, little-endian), the header in JSON, the tensors' bytes without gaps.

They are read and written here rather than by the safetensors library, which opens them too. When that library reads, it
maps a file into memory: its pages count as the process's (1.1 GB against 0.1 GB for 1 GB of weights), a file that
shrinks meanwhile ends the process, and headers that name a tensor twice or take gigabytes of memory are accepted. When
it writes, it needs all tensors in memory, puts numbers in the wrong order if a tensor's rows are not contiguous, takes
read permission from the group against the umask, and raises no OSError on a full disk.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file, read_json
from lantern_jax.tensors.stored_tensor import StoredTensor, stored_tensor

_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
# Enough for fifty thousand tensors; the format would allow 100 MB, which take gigabytes once parsed.
_LONGEST_HEADER = 8 * 2**20
INDEX_SUFFIX = ".index.json"
# Enough for a hundred thousand tensors.
_LARGEST_INDEX = 8 * 2**20


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Opens a file as {name: tensor, not yet read}.

    Raises:
        LanternError: no such file, a truncated one, or one whose header and bytes do not agree.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LONGEST_HEADER):
            raise _not_safetensors(path, f"its header would have {length} bytes")
        header = file.read(length)
    try:
        entries = json.loads(header, object_pairs_hook=_unique)
        entries.pop("__metadata__", None)
        places = sorted((*map(int, entry["data_offsets"]), name) for name, entry in entries.items())
        tensors, end = {}, 0
        for start, stop, name in places:
            dtype, shape = np.dtype(_DTYPES[entries[name]["dtype"]]), tuple(entries[name]["shape"])
            if start != end or stop != start + math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
                raise LanternError(f"{errors.short(name)} does not fill its place")
            tensors[name], end = stored_tensor(path, name, 8 + length + start, shape, dtype), stop
    except RecursionError as error:
        raise _not_safetensors(path, "its header is nested too deeply") from error
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise _not_safetensors(path, f"its header is wrong: {errors.short(error, 240)}") from error
    if not tensors:
        raise LanternError(f"{path} is empty: name a checkpoint of tensors only")
    if end != size - 8 - length:
        raise _not_safetensors(path, f"it has {size - 8 - length} bytes of tensors, expected {end}")
    return {name: tensors[name] for name in entries}


def open_sharded(
    index: Path, open_shard: Callable[[Path], dict[str, StoredTensor]] = open_safetensors
) -> dict[str, StoredTensor]:
    """Opens the shards that an index names, each with ``open_shard``, as {name: tensor, not yet read}.

    Raises:
        LanternError: not an index; shards that are missing, lie elsewhere or hold other tensors than it says.
    """
    try:
        promised = read_json(index, _LARGEST_INDEX)["weight_map"]
        shards = sorted(set(promised.values()))
        # A shard lies beside its index: anything else is a mistake or an attempt to read elsewhere.
        foreign = [name for name in shards if Path(name).name != name]
    except (KeyError, TypeError, AttributeError) as error:
        raise LanternError(
            f"{index} is not an index of shards ({type(error).__name__}): fetch it again or name another"
        ) from error
    if foreign or not shards:
        what = f"names {errors.listed(foreign)}, not files beside it" if foreign else "names no shard"
        raise LanternError(f"{index} {what}: fetch it again or name another")
    missing = [name for name in shards if not os.path.isfile(index.parent / name)]
    if missing:
        raise LanternError(
            f"{index} names {len(shards)} shards, {len(missing)} missing: {errors.listed(missing)}: fetch them into "
            f"{index.parent}"
        )
    tensors: dict[str, StoredTensor] = {}
    for name in shards:
        shard = open_shard(index.parent / name)
        lacking = [tensor for tensor in promised if promised[tensor] == name and tensor not in shard]
        foreign = [tensor for tensor in shard if promised.get(tensor) != name]
        if lacking or foreign:
            what = "lacks" if lacking else "holds, and the index does not say so,"
            raise LanternError(
                f"{index} and its shards do not belong together: {name} {what} {errors.listed(lacking or foreign)}: "
                "fetch both again"
            )
        tensors |= shard
    return {tensor: tensors[tensor] for tensor in promised}


def write_safetensors(
    path: Path, tensors: Mapping[str, Any], report: Callable[[int], None] = lambda _: None
) -> None:
    """Writes a new file; the same tensors yield the same bytes.

    Args:
        tensors: NumPy or JAX arrays, or anything with a shape and a dtype that ``np.asarray`` takes; only one at a
            time is in memory.
        report: called with the number of bytes written since the last call.

    Raises:
        OSError: it cannot be written.
        LanternError: a dtype that the format does not have.
    """
    # The widest dtypes first: all numbers then lie at multiples of their sizes, as readers prefer.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries, end = {}, 0
    for name in names:
        shape, dtype = tensors[name].shape, np.dtype(tensors[name].dtype)
        if dtype not in _NAMES:
            raise LanternError(f"{name} is of dtype {dtype.name}, which a safetensors file does not hold")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in names:
            values = np.ascontiguousarray(tensors[name])
            file.write(values.reshape(-1).view(np.uint8))
            report(values.nbytes)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise LanternError("a name occurs twice")
    return content


def _not_safetensors(path: Path, why: str) -> LanternError:
    return LanternError(f"{path} is not a whole safetensors file ({why}): fetch it again or name another")
