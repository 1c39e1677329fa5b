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
from lantern_jax.io.files import open_file, read_json, whole_number
from lantern_jax.tensors.checksums import Summing, file_checksum
from lantern_jax.tensors.stored_tensor import StoredTensor, rows, span, stored_tensor

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
_MOST_SHARDS = 1000


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Opens a file as {name: tensor, not yet read}.

    Raises:
        LanternError: no such file, a truncated one, or one whose header and bytes do not agree.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _not_safetensors(path, f"its header does not fit into {size} bytes")
        if length > _LONGEST_HEADER:
            raise _not_safetensors(path, f"its header has {length} bytes, at most {_LONGEST_HEADER} are read")
        header = file.read(length)
    try:
        entries = json.loads(header, object_pairs_hook=_unique, parse_int=whole_number)
        entries.pop("__metadata__", None)
        spans = {name: _span(name, entry) for name, entry in entries.items()}
    except RecursionError as error:
        raise _not_safetensors(path, "its header is nested too deeply") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _not_safetensors(path, f"its header is wrong: {errors.short(error, 240)}") from error
    if not spans:
        raise LanternError(f"{path} is empty: name a checkpoint of tensors only")
    end = 0
    for name, (_, _, start, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if start != end:
            raise _not_safetensors(path, f"{errors.short(name)} starts at byte {start}, expected {end}")
        end = stop
    if end != size - 8 - length:
        raise _not_safetensors(path, f"it has {size - 8 - length} bytes of tensors, expected {end}")
    return {
        name: stored_tensor(path, name, 8 + length + start, shape, dtype)
        for name, (dtype, shape, start, _) in spans.items()
    }


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
    except (KeyError, TypeError, AttributeError) as error:
        raise LanternError(
            f"{index} is not an index of shards ({type(error).__name__}): fetch it again or name another"
        ) from error
    # A shard lies beside its index: anything else is a mistake or an attempt to read elsewhere.
    foreign = [
        str(name)
        for name in shards
        if not isinstance(name, str) or Path(name).name != name or len(name) > 255
    ]
    if foreign or not shards:
        what = f"names {errors.listed(foreign)}, not files beside it" if foreign else "names no shard"
        raise LanternError(f"{index} {what}: fetch it again or name another")
    if len(shards) > _MOST_SHARDS:
        raise LanternError(
            f"{index} names {len(shards)} shards, at most {_MOST_SHARDS} are read: name another"
        )
    missing = [name for name in shards if not (index.parent / name).is_file()]
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
) -> str:
    """Writes a new file, reads it back and returns its checksum; the same tensors yield the same bytes.

    Args:
        tensors: NumPy or JAX arrays, or anything with a shape and a dtype that ``np.asarray`` takes; only one at a
            time is in memory.
        report: called with the number of bytes written since the last call.

    Raises:
        OSError: it cannot be written, or what was read back is not what was written.
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
    summing = Summing()
    with path.open("xb") as file:

        def write(data: Any) -> None:
            file.write(data)
            summing.add(memoryview(data))

        write(len(header).to_bytes(8, "little") + header)
        for name in names:
            values = np.asarray(tensors[name])
            write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
            report(values.nbytes)
    if file_checksum(path) != summing.checksum:
        raise OSError(f"{path} does not hold what was written to it: the disk may be full or failing")
    return summing.checksum


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise LanternError("a name occurs twice")
    return content


def _span(name: str, entry: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Reads (dtype, shape, first byte, byte after the last) from a header's entry."""
    name = errors.short(name)
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise LanternError(f"{name} does not have just a dtype, a shape and a place")
    dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _DTYPES:
        raise LanternError(f"{name} is of an unknown dtype {errors.short(repr(dtype))}")
    kind = np.dtype(_DTYPES[dtype])
    # `type`, not isinstance: JSON's true is a bool, which is an int.
    if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
        raise LanternError(f"{name} has a wrong shape or place")
    if stop - start != math.prod(shape) * kind.itemsize:
        raise LanternError(f"{name} has {stop - start} bytes for shape {errors.short(shape)} of {dtype}")
    try:
        span(shape, rows(shape))
    except ValueError as error:
        raise LanternError(f"{name} {error}") from None
    return kind, tuple(shape), start, stop


def _not_safetensors(path: Path, why: str) -> LanternError:
    return LanternError(f"{path} is not a whole safetensors file ({why}): fetch it again or name another")
