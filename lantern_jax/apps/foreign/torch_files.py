"""PyTorch's files, zip archives since 2020 and pickles before, read without PyTorch.

PyTorch's own reader makes every tensor that a file describes before it can be checked, even one that is sparse, nested
or larger than memory, and some damaged files end the process. Here only the description is read: each tensor must have
a dtype that NumPy has too and fit into its storage, which must fit into the file. The layout is that of
``torch.save``.
"""

import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lantern_jax.apps.foreign.archives import open_archive, place_of
from lantern_jax.apps.foreign.torch_pickle import Call, Elsewhere, described, name_of, read_pickle
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file
from lantern_jax.tensors.stored_tensor import StoredTensor, span, stored_tensor

# Training scripts keep sets of weights under these keys, beside optimizer state and the like. LlamaGen's scripts draw,
# and encode what its GPTs are trained on, with the first three, in this order; some of them reconstruct with "ema".
_SETS = (
    "model",
    "module",
    "state_dict",
    "weights",
    "params",
    "model_ema",
    "ema",
    "ema_state_dict",
    "state_dict_ema",
)
_USUAL = frozenset(_SETS[:3])
_DTYPES = {
    "Double": np.float64, "Float": np.float32, "Half": np.float16, "BFloat16": ml_dtypes.bfloat16,
    "Long": np.int64, "Int": np.int32, "Short": np.int16, "Char": np.int8, "Byte": np.uint8, "Bool": np.bool_,
}  # fmt: skip
_STORAGES = {f"torch.{name}Storage": np.dtype(dtype) for name, dtype in _DTYPES.items()}
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
# The most bytes of the describing pickle; a hundred thousand tensors take a quarter of that.
_LONGEST_PICKLE = 16 * 2**20
_MOST_KEYS = 3
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


# Key of a storage -> its first byte and its number of bytes.
_Places = dict[str, tuple[int, int]]


def open_torch(path: Path, weights: str | None = None) -> dict[str, StoredTensor]:
    """Opens a file of ``torch.save`` as {name: tensor, not yet read}: the top level, or what is under "model" and the
    like. Where that is a choice, a warning says what was taken and what else is there.

    Args:
        weights: the set to take, by its key or keys with dots between them: "ema", "model.state_dict".

    Raises:
        LanternError: the file is damaged, or holds something other than named plain tensors.
    """
    try:
        with open_file(path) as file:
            start = file.read(4)
        if start[:2] != b"PK" and start[:1] != b"\x80":
            raise _OthersError("is not a PyTorch checkpoint: give a file of torch.save")
        content, places = _read_archive(path) if start[:2] == b"PK" else _read_older(path)
        return _tensors(path, _chosen(path, content, weights), places)
    except _OthersError as error:
        raise LanternError(f"{path} {error}") from None
    except LanternError as error:
        raise LanternError(
            f"{path} is truncated or not a PyTorch checkpoint ({errors.short(error, 240)}): "
            "fetch it again or name another"
        ) from error


class _OthersError(LanternError):
    """A valid file, but not one of named plain tensors."""


def _read_archive(path: Path) -> tuple[Any, _Places]:
    with open_archive(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        found = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(found) != 1:
            raise LanternError(f"{len(found)} entries data.pkl")
        folder = found[0].removesuffix("data.pkl")
        if entries[found[0]].file_size > _LONGEST_PICKLE:
            raise LanternError(f"its description is larger than {_LONGEST_PICKLE} bytes")
        content = read_pickle(io.BytesIO(archive.read(found[0])))
        start = f"{folder}data/"
        places = {
            name.removeprefix(start): (place_of(archive, entry), entry.file_size)
            for name, entry in entries.items()
            if name.startswith(start) and not entry.is_dir()
        }

    return content, places


def _read_older(path: Path) -> tuple[Any, _Places]:
    """Reads the pickles of a magic number, a version, the writer's machine, the content and the storages' keys, and
    finds the storages behind them, each a count (8 bytes, little-endian) and its numbers.
    """
    with open_file(path) as file:
        start = io.BytesIO(file.read(_LONGEST_PICKLE))
    declared: dict[str, np.dtype] = {}

    def note(key: Any) -> Elsewhere:
        words = Elsewhere(key)
        dtype, name, _ = _storage_words(words)
        declared.setdefault(name, dtype)
        return words

    magic, protocol, _, content = (read_pickle(start, note) for _ in range(4))
    if (magic, protocol) != (_MAGIC, _PROTOCOL):
        raise LanternError("it is another pickle")
    keys = read_pickle(start)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise LanternError("it has no list of storages")
    with open_file(path) as file:
        size, place, places = os.fstat(file.fileno()).st_size, start.tell(), {}
        for key in keys:
            file.seek(place)
            count = int.from_bytes(file.read(8), "little")
            place += 8
            if key not in declared or count > size:
                raise LanternError(f"storage {errors.short(key)} is not described, or truncated")
            places[key] = place, count * declared[key].itemsize
            place += places[key][1]
            if place > size:
                raise LanternError(f"storage {errors.short(key)} is truncated")

    return content, places


def _storage_words(words: Any) -> tuple[np.dtype, str, int]:
    """Returns (dtype, key, count of numbers) of a storage."""
    key = words.key if isinstance(words, Elsewhere) else None
    # An older format has a sixth word, for a storage that is a part of another.
    if not isinstance(key, tuple) or len(key) not in (5, 6) or key[0] != "storage" or any(key[5:]):
        raise LanternError("it has an invalid storage")
    kind, name, count = key[1], key[2], key[4]
    if not name_of(kind) or not isinstance(name, str) or type(count) is not int or count < 0:
        raise LanternError("it has an invalid storage")
    if kind.name not in _STORAGES:
        raise LanternError(f"it has a {errors.short(kind.name)}, which has no NumPy equivalent")
    return _STORAGES[kind.name], name, count


def _chosen(path: Path, content: Any, weights: str | None) -> Mapping[Any, Any]:
    """Returns the set of weights with this name, or the usual one."""
    if not isinstance(content, Mapping):
        raise _OthersError(f"holds {described(content)}: name a checkpoint with named tensors")
    sets = _sets(content)
    usual = sorted(
        (keys for keys in sets if set(keys) <= set(_SETS)), key=lambda keys: [*map(_SETS.index, keys)]
    )
    names = {".".join(keys): keys for keys in [*usual, *sets]}
    if weights is not None and weights not in names and len(names) > 1:
        raise _OthersError(f"has no weights {errors.short(weights)}: choose from {errors.listed(names, 8)}")
    chosen = names.get(weights or "", usual[0] if usual else ())
    taken = f"took {errors.short('.'.join(chosen) or 'the top level')}"
    others = [".".join(keys) for keys in usual if keys != chosen]
    note = ""
    if weights is not None and names.get(weights) != chosen:
        note = f"has no weights {errors.short(weights)}: {taken}"
    elif weights is None and others:
        note = f"has several sets of weights: {taken}, not {errors.listed(others)} (--weights {others[0]})"
    elif weights is None and not set(chosen) <= _USUAL:
        note = f"has no weights under model, module or state_dict: {taken}"
    if note:
        warnings.warn(f"{path.name} {note}", errors.Assumed, stacklevel=1)
    if not chosen and sets and not any(map(_is_tensor, content.values())):
        raise _OthersError(f"keeps its tensors in {errors.listed(names)}: choose with --weights")
    return sets[chosen] if chosen else content


def _sets(content: Mapping[Any, Any], keys: tuple[str, ...] = ()) -> dict[tuple[str, ...], Mapping[Any, Any]]:
    """Returns the named tensors inside a mapping, by the keys that lead to them."""
    found = {}
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Mapping) and len(keys) < _MOST_KEYS:
            inside = any(isinstance(name, str) and _is_tensor(one) for name, one in value.items())
            found |= {(*keys, key): value} if inside else _sets(value, (*keys, key))
    return found


def _tensors(path: Path, content: Mapping[Any, Any], places: _Places) -> dict[str, StoredTensor]:
    foreign = [
        f"{errors.short(name, 60)}: {described(value)}" if isinstance(name, str) else described(name)
        for name, value in content.items()
        if not isinstance(name, str) or not _is_tensor(value)
    ]
    if foreign or not content:
        what = (
            f"holds things that are not plain tensors ({errors.listed(foreign)})" if foreign else "is empty"
        )
        raise _OthersError(f"{what}: name a checkpoint of tensors only")
    tensors = {}
    for name, value in content.items():
        try:
            tensors[name] = _tensor(path, name, value, places)
        except LanternError as error:
            raise LanternError(f"{errors.short(name, 80)}: {error}") from error
    return tensors


def _plain(value: Any) -> Any:
    """Returns a parameter's tensor, or the value itself."""
    while isinstance(value, Call) and value.name in _PARAMETERS and value.arguments:
        value = value.arguments[0]
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(_plain(value), Call) and _plain(value).name in _REBUILD


def _tensor(path: Path, name: str, value: Any, places: _Places) -> StoredTensor:
    call = _plain(value)
    fewest = _REBUILD[call.name]
    if len(call.arguments) < fewest:
        raise LanternError("is not described")
    words, offset, shape, strides = call.arguments[:4]
    dtype, key, count = _storage_words(words)
    if key not in places:
        raise LanternError(f"it lacks the storage {errors.short(key)}")
    start, size = places[key]
    if count * dtype.itemsize > size:
        raise LanternError(f"storage {errors.short(key)} has {size} bytes and declares {count} numbers")
    if any(call.arguments[fewest:]):
        raise LanternError("is conjugated, negated or of another device's layout")
    taken = span(shape, strides)
    if type(offset) is not int or offset < 0 or (taken and offset + taken > count):
        raise LanternError(f"takes numbers from {errors.short(offset)} on in a storage of {count}")
    start += offset * dtype.itemsize if taken else 0
    return stored_tensor(path, name, start, shape, dtype, strides)


# How many arguments come before notes on conjugation and the like.
_REBUILD = {
    "torch._utils._rebuild_tensor": 4, "torch._utils._rebuild_tensor_v2": 6,
}  # fmt: skip
