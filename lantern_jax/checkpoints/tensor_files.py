"""Opening files of published tensors: PyTorch's formats and safetensors, whole or in shards.

Nothing but names, shapes and dtypes is read until a tensor is asked for, and then that tensor alone; nothing stays
mapped, so a large checkpoint costs the memory of what its reader keeps. Never runs code from a file.
"""

import argparse
import dataclasses
import json
import math
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

# Under these keys training scripts keep the weights, beside optimizer state and the like.
_WRAPPERS = ("model", "module", "state_dict")
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_SUFFIXES = (".safetensors", *_TORCH_SUFFIXES)
_INDEX_SUFFIX = ".index.json"
# What a folder of the Hugging Face hub calls its weights, the preferred first.
_USUAL_NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_GIVE = "give a .safetensors, .pt, .pth, .bin or .ckpt file, the index of a sharded one, or their folder"
_SAFETENSORS_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
# The format's own limit.
_LONGEST_HEADER = 100_000_000
_MAPPED_AT_ONCE = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its shape and dtype are known; ``np.asarray`` reads its values, anew each time."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray] = dataclasses.field(repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the values are in a file: reading them makes a new array")
        values = self.read()
        return values if dtype is None else values.astype(dtype, copy=False)


def open_tensors(path: str | Path) -> dict[str, StoredTensor]:
    """{name: tensor, not yet read} of a tensor file, of a sharded checkpoint or of a folder that holds either.

    A sharded checkpoint is given by its index (``model.safetensors.index.json``). In a folder the Hugging Face names
    are taken first, then the only tensor file. The state dict of a PyTorch file may be the top level or sit under
    "model", "module" or "state_dict". bfloat16 tensors come out as ``ml_dtypes.bfloat16``. Files in PyTorch's format
    of before 2020 (no zip archive) are the exception: they are read whole.

    Raises:
        ValueError: one line: a file is missing, truncated, not a tensor file, or a pickle that wants to run code;
            a folder holds none or too many; an index and its shards do not agree. Reading a tensor raises it too.
        ImportError: PyTorch, which reads its own formats, is not installed.
    """
    path = Path(path)
    if path.is_dir():
        path = path / choose_weights((file.name for file in path.iterdir() if file.is_file()), path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file: {_GIVE}")
    if path.name.endswith(_INDEX_SUFFIX):
        return _open_sharded(path)
    if path.suffix in _SUFFIXES:
        return _open_file(path)
    raise ValueError(f"{path} has an unknown suffix: {_GIVE}")


def choose_weights(names: Iterable[str], folder: str | Path) -> str:
    """The file that holds the weights, or the index of their shards, among the names of a folder's files.

    Args:
        names: of the files, without the folder.
        folder: what to call it in an error.

    Raises:
        ValueError: the folder holds no tensor file, or several of which none is the usual one.
    """
    names = sorted(names)
    for name in _USUAL_NAMES:
        if name in names:
            return name
    found = [name for name in names if name.endswith(_INDEX_SUFFIX)] or [
        name for name in names if Path(name).suffix in _SUFFIXES
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(f"{folder} holds no tensor file: {_GIVE}")
    shown = ", ".join(found[:5])
    advice = "fetch the index too" if "-of-" in shown else "name one of them"
    raise ValueError(f"{folder} holds {len(found)} tensor files ({shown}): {advice}")


def _open_sharded(index: Path) -> dict[str, StoredTensor]:
    try:
        promised = json.loads(index.read_bytes())["weight_map"]
        shards = sorted(set(promised.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{index} is not an index of shards ({type(error).__name__}): fetch it again or name another"
        ) from error
    # A shard lies beside its index: anything else is a mistake or an attempt to read elsewhere.
    foreign = [str(name) for name in shards if not isinstance(name, str) or Path(name).name != name]
    if foreign or not shards:
        what = f"names {', '.join(foreign[:5])}, not files beside it" if foreign else "names no shard"
        raise ValueError(f"{index} {what}: fetch it again or name another")
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        raise ValueError(
            f"{index} names {len(shards)} shards, {len(missing)} missing: {', '.join(missing)}: fetch them into "
            f"{index.parent}"
        )
    tensors: dict[str, StoredTensor] = {}
    for name in shards:
        shard = _open_file(index.parent / name)
        absent = [tensor for tensor in promised if promised[tensor] == name and tensor not in shard]
        if absent:
            raise _mismatch(index, f"{name} lacks", absent)
        twice = [tensor for tensor in shard if promised.get(tensor, name) != name]
        if twice:
            raise _mismatch(index, f"{name} holds, as another shard does,", twice)
        unnamed = [tensor for tensor in shard if tensor not in promised]
        if unnamed:
            raise _mismatch(index, f"{name} holds, and the index does not name,", unnamed)
        tensors |= shard
    return {tensor: tensors[tensor] for tensor in promised}


def _mismatch(index: Path, what: str, tensors: list[str]) -> ValueError:
    names = ", ".join(tensors[:5]) + (f" and {len(tensors) - 5} more" if len(tensors) > 5 else "")
    return ValueError(f"{index} and its shards do not belong together: {what} {names}: fetch both again")


def _open_file(path: Path) -> dict[str, StoredTensor]:
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"{path} has an unknown suffix: {_GIVE}")
    try:
        with path.open("rb") as file:
            pointer = file.read(24) == b"version https://git-lfs."
        if pointer:
            raise ValueError(f"{path} is a pointer to a file, not the file: fetch it with `git lfs pull`")
        return _open_safetensors(path) if path.suffix == ".safetensors" else _open_torch(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({_line(error)}): fetch it again or name another") from error


def _open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The format: the header's length (8 bytes, little-endian), the header in JSON, the tensors' bytes without gaps."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise _not_safetensors(path, f"its header does not fit into {size} bytes")
        header = file.read(length)
    try:
        entries = json.loads(header, object_pairs_hook=_unique)
        entries.pop("__metadata__", None)
        spans = {name: _span(name, entry) for name, entry in entries.items()}
    except RecursionError as error:
        raise _not_safetensors(path, "its header is nested too deeply") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _not_safetensors(path, f"its header is wrong: {_line(error)}") from error
    if not spans:
        raise ValueError(f"{path} is empty: name a checkpoint of tensors only")
    end = 0
    for name, (_, _, start, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if start != end:
            raise _not_safetensors(path, f"{name} starts at byte {start}, expected {end}")
        end = stop
    if end != size - 8 - length:
        raise _not_safetensors(path, f"it has {size - 8 - length} bytes of tensors, expected {end}")

    def stored(name, dtype, shape, start):
        def read() -> np.ndarray:
            try:
                with path.open("rb") as file:
                    file.seek(8 + length + start)
                    values = np.fromfile(file, dtype=np.uint8, count=math.prod(shape) * dtype.itemsize)
                return values.view(dtype).reshape(shape)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{path}: {name} cannot be read ({_line(error)}): fetch the file again"
                ) from error

        return StoredTensor(shape, dtype, read)

    return {name: stored(name, dtype, shape, start) for name, (dtype, shape, start, _) in spans.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name occurs twice")
    return content


def _span(name: str, entry: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """(dtype, shape, first byte, byte after the last) of a header's entry."""
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name} does not have just a dtype, a shape and a place")
    dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _SAFETENSORS_DTYPES:
        raise ValueError(f"{name} is of an unknown dtype {dtype!r}")
    kind = np.dtype(_SAFETENSORS_DTYPES[dtype])
    # `type`, not isinstance: JSON's true is a bool, which is an int.
    if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} has a wrong shape or place")
    if stop - start != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{name} has {stop - start} bytes for shape {shape} of {dtype}")
    return kind, tuple(shape), start, stop


def _not_safetensors(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not a whole safetensors file ({why}): fetch it again or name another")


def _open_torch(path: Path) -> dict[str, StoredTensor]:
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"reading {path.name} needs torch: pip install lantern-jax[convert]") from error
    content = _TorchFile(torch, path)

    def stored(name, tensor):
        try:
            dtype = _to_numpy(torch, torch.empty(0, dtype=tensor.dtype)).dtype
        except TypeError as error:
            raise ValueError(
                f"{path}: {name} is of {tensor.dtype}, which has no NumPy equivalent: name another"
            ) from error
        return StoredTensor(tuple(tensor.shape), dtype, partial(content.read, name))

    return {name: stored(name, tensor) for name, tensor in content.tensors.items()}


class _TorchFile:
    """The tensors of a PyTorch file. An archive is mapped anew when enough was read of it, because the pages that were
    read count as the process's memory until their mapping ends.
    """

    def __init__(self, torch, path: Path):
        self.torch, self.path, self.zipped = torch, path, _check_start(path)
        self.load()

    def load(self) -> None:
        self.tensors, self.touched = _load_torch(self.torch, self.path, self.zipped), 0

    def read(self, name: str) -> np.ndarray:
        if self.tensors is None:
            self.load()
        values = _to_numpy(self.torch, self.tensors[name]).copy()
        self.touched += values.nbytes
        if self.zipped and self.touched > _MAPPED_AT_ONCE:
            self.tensors = None
        return values


def _load_torch(torch, path: Path, zipped: bool) -> Mapping[str, Any]:
    """{name: torch.Tensor} of a file, mapped into memory where it is a zip archive."""
    try:
        # Plain attribute bags, which LlamaGen's training script keeps beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error) or (not zipped and _calls(path)):
            raise ValueError(
                f"{path} is a pickle that wants to run code: refused; name a file of tensors only"
            ) from error
        raise _damaged(path, error) from error
    except (
        RuntimeError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
    ) as error:
        raise _damaged(path, error) from error
    tensors = _unwrap(path, content)
    foreign = [name for name, tensor in tensors.items() if not isinstance(tensor, torch.Tensor)]
    if foreign or not tensors:
        what = (
            f"holds things that are not tensors ({', '.join(map(str, foreign[:5]))})"
            if foreign
            else "is empty"
        )
        raise ValueError(f"{path} {what}: name a checkpoint of tensors only")
    return tensors


def _check_start(path: Path) -> bool:
    """Whether the file is a zip archive (else a pickle, PyTorch's older format); raises if it is neither."""
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == b"PK":
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path} is truncated: fetch it again")
        return True
    if start[:1] != b"\x80":
        raise ValueError(f"{path} is not a PyTorch checkpoint: {_GIVE}")
    return False


def _calls(path: Path) -> bool:
    """Whether a pickle's instructions call or import anything; they are listed, not run."""
    calls = {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
    try:
        with path.open("rb") as file:
            return any(operation.name in calls for operation, _, _ in pickletools.genops(file))
    except ValueError:
        return False


def _unwrap(path: Path, content: Any) -> Mapping[str, Any]:
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            return content[key]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}: name a checkpoint with named tensors")
    return content


def _to_numpy(torch, tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} is truncated or not a PyTorch checkpoint ({_line(error)}): fetch it again or name another"
    )


def _line(error: Exception) -> str:
    """The first line of an error, short."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(".: ")
