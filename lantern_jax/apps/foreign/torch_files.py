"""PyTorch's files, zip archives since 2020 and pickles before, read without PyTorch.

The pickle in them is read as data: what it would import or call becomes a record, and nothing is run. PyTorch's own
reader makes every tensor that a file describes before it can be checked, even one that is sparse, nested or larger than
memory, and some damaged files end the process. Here each tensor must have a dtype that NumPy has too and fit into its
storage, which must fit into the file. The layout is that of ``torch.save``.
"""

import io
import os
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lantern_jax.apps.foreign.archives import open_archive, place_of
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
# What makes a tensor, and how many arguments come before notes on conjugation and the like.
_REBUILD = {"torch._utils._rebuild_tensor": 4, "torch._utils._rebuild_tensor_v2": 6}
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


class _Call:
    """Something that a pickle would call, with its arguments. A subclass stands for each name that it would import.

    Attributes:
        name: such as "torch.FloatStorage".
    """

    name = ""

    def __new__(cls, *arguments: Any, **_: Any) -> "_Call":
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *_: Any, **__: Any):
        self.arguments: tuple[Any, ...]

    def __setstate__(self, state: Any) -> None:
        """Drops attributes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drops an item, as of a kind of dict that is not known here."""


class _Dict(dict):
    def __setstate__(self, state: Any) -> None:
        """Drops attributes, such as the versions of a state dict's modules."""


@dataclass(frozen=True, eq=False)
class _Storage:
    """Numbers outside the pickle: their key, their number, and the name of what PyTorch keeps such in."""

    kind: str
    key: str
    count: int

    @property
    def dtype(self) -> np.dtype:
        if self.kind not in _STORAGES:
            raise LanternError(f"it has a {errors.short(self.kind)}, which has no NumPy equivalent")
        return _STORAGES[self.kind]


class _Reader(pickle.Unpickler):
    """Reads a pickle as plain containers, ``_Call``, its subclasses and ``_Storage``; ``found`` sees each storage."""

    def __init__(self, file: io.BytesIO, found: Callable[[_Storage], None]):
        super().__init__(file)
        self._found = found

    def find_class(self, module: str, name: str) -> type:
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        return type("Call", (_Call,), {"name": f"{module}.{name}"})

    def persistent_load(self, words: Any) -> _Storage:
        match words:
            # An older format has a sixth word, for a storage that is a part of another.
            case ("storage", type() as kind, str() as key, _, int() as count, *more) if (
                count >= 0 and not any(more)
            ):
                storage = _Storage(getattr(kind, "name", ""), key, count)
                self._found(storage)
                return storage
        raise LanternError("it has an invalid storage")


def _read_pickle(file: io.BytesIO, found: Callable[[_Storage], None] = lambda storage: None) -> Any:
    """Reads the pickle at a file's position; raises LanternError for one that is damaged."""
    try:
        return _Reader(file, found).load()
    except LanternError:
        raise
    # A damaged pickle makes Python's reader raise anything.
    except Exception as error:
        raise LanternError(f"its description is damaged ({type(error).__name__})") from error


def _described(value: Any) -> str:
    """Names something in a pickle, for an error."""
    if isinstance(value, _Call) or (isinstance(value, type) and issubclass(value, _Call)):
        return errors.short(value.name)
    return "a storage" if isinstance(value, _Storage) else f"a {type(value).__name__}"


def _read_archive(path: Path) -> tuple[Any, _Places]:
    with open_archive(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        found = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(found) != 1:
            raise LanternError(f"{len(found)} entries data.pkl")
        if entries[found[0]].file_size > _LONGEST_PICKLE:
            raise LanternError(f"its description is larger than {_LONGEST_PICKLE} bytes")
        content = _read_pickle(io.BytesIO(archive.read(found[0])))
        start = f"{found[0].removesuffix('data.pkl')}data/"
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
        start, size = io.BytesIO(file.read(_LONGEST_PICKLE)), os.fstat(file.fileno()).st_size
        declared: dict[str, np.dtype] = {}

        def note(storage: _Storage) -> None:
            declared.setdefault(storage.key, storage.dtype)

        magic, protocol, _, content = (_read_pickle(start, note) for _ in range(4))
        if (magic, protocol) != (_MAGIC, _PROTOCOL):
            raise LanternError("it is another pickle")
        keys = _read_pickle(start)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise LanternError("it has no list of storages")
        place, places = start.tell(), {}
        for key in keys:
            file.seek(place)
            count = int.from_bytes(file.read(8), "little")
            if key not in declared or count > size:
                raise LanternError(f"storage {errors.short(key)} is not described, or truncated")
            places[key] = place + 8, count * declared[key].itemsize
            place = sum(places[key])
            if place > size:
                raise LanternError(f"storage {errors.short(key)} is truncated")
    return content, places


def _chosen(path: Path, content: Any, weights: str | None) -> Mapping[Any, Any]:
    """Returns the set of weights with this name, or the usual one."""
    if not isinstance(content, Mapping):
        raise _OthersError(f"holds {_described(content)}: name a checkpoint with named tensors")
    sets = _sets(content)
    ranks = {name: [*map(_SETS.index, keys)] for name in sets if set(keys := name.split(".")) <= set(_SETS)}
    usual = sorted(ranks, key=ranks.__getitem__)
    names = [*usual, *(name for name in sets if name not in ranks)]
    if weights is not None and weights not in sets and len(sets) > 1:
        raise _OthersError(f"has no weights {errors.short(weights)}: choose from {errors.listed(names, 8)}")
    chosen = weights if weights in sets else next(iter(usual), "")
    taken, others = f"took {errors.short(chosen or 'the top level')}", [one for one in usual if one != chosen]
    note = ""
    if weights not in (None, chosen):
        note = f"has no weights {errors.short(weights)}: {taken}"
    elif weights is None and others:
        note = f"has several sets of weights: {taken}, not {errors.listed(others)} (--weights {others[0]})"
    elif weights is None and chosen and not set(chosen.split(".")) <= _USUAL:
        note = f"has no weights under model, module or state_dict: {taken}"
    if note:
        warnings.warn(f"{path.name} {note}", errors.Assumed, stacklevel=1)
    if not chosen and sets and not any(map(_is_tensor, content.values())):
        raise _OthersError(f"keeps its tensors in {errors.listed(names)}: choose with --weights")
    return sets[chosen] if chosen else content


def _sets(content: Mapping[Any, Any], above: tuple[str, ...] = ()) -> dict[str, Mapping[Any, Any]]:
    """Returns the named tensors inside a mapping, by the keys that lead to them with dots between."""
    found = {}
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Mapping) and len(above) < _MOST_KEYS:
            inside = any(isinstance(name, str) and _is_tensor(one) for name, one in value.items())
            found |= {".".join((*above, key)): value} if inside else _sets(value, (*above, key))
    return found


def _tensors(path: Path, content: Mapping[Any, Any], places: _Places) -> dict[str, StoredTensor]:
    foreign = [
        f"{errors.short(name, 60)}: {_described(value)}" if isinstance(name, str) else _described(name)
        for name, value in content.items()
        if not isinstance(name, str) or not _is_tensor(value)
    ]
    if foreign or not content:
        held = (
            f"holds things that are not plain tensors ({errors.listed(foreign)})" if foreign else "is empty"
        )
        raise _OthersError(f"{held}: name a checkpoint of tensors only")
    tensors = {}
    for name, value in content.items():
        try:
            tensors[name] = _tensor(path, name, _plain(value), places)
        except LanternError as error:
            raise LanternError(f"{errors.short(name, 80)}: {error}") from error
    return tensors


def _plain(value: Any) -> Any:
    """Returns a parameter's tensor, or the value itself."""
    while isinstance(value, _Call) and value.name in _PARAMETERS and value.arguments:
        value = value.arguments[0]
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(_plain(value), _Call) and _plain(value).name in _REBUILD


def _tensor(path: Path, name: str, call: _Call, places: _Places) -> StoredTensor:
    fewest = _REBUILD[call.name]
    if len(call.arguments) < fewest:
        raise LanternError("is not described")
    storage, offset, shape, strides = call.arguments[:4]
    if not isinstance(storage, _Storage) or storage.key not in places:
        raise LanternError("it lacks its storage")
    (start, size), dtype = places[storage.key], storage.dtype
    if storage.count * dtype.itemsize > size:
        raise LanternError(f"its storage has {size} bytes and declares {storage.count} numbers")
    if any(call.arguments[fewest:]):
        raise LanternError("is conjugated, negated or of another device's layout")
    taken = span(shape, strides)
    if type(offset) is not int or offset < 0 or (taken and offset + taken > storage.count):
        raise LanternError(f"takes numbers from {errors.short(offset)} on in a storage of {storage.count}")
    start += offset * dtype.itemsize if taken else 0
    return stored_tensor(path, name, start, shape, dtype, strides)
