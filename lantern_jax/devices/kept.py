"""What earlier processes compiled and traced, found without tracing it again.

JAX's own cache knows a program by its text, and writing the text of a model takes longer than decoding a small picture.
Here it is known by what it is made of: its static functions and values, the shapes of its arguments, this package's
source, and its environment. What cannot be described this way, such as a caller's own rule, is not kept.
"""

import contextlib
import dataclasses
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module, resources
from pathlib import Path
from types import FunctionType, MethodType, NoneType
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.tree_util import PyTreeDef

from lantern_jax.devices.compilation import user_cache_directory
from lantern_jax.devices.platform import versions
from lantern_jax.io.files import open_file, write_file

# Bytes that are kept, the last used ones: what a picture needs takes some megabytes.
_MOST = 500 * 2**20
# Rooms of this package that hold traced functions, and those that these import from: their source is described.
ROOMS = (
    "checkpoints", "decoding", "devices", "engine", "families", "io", "kernels", "models", "pictures", "tensors",
    "text",
)  # fmt: skip
# What is found by its name in these is the same wherever versions and source are the same.
_OTHERS = ("builtins", "flax", "functools", "jax", "jaxlib", "numpy")
_KNOWN = (*_OTHERS, *(f"lantern_jax.{room}" for room in ROOMS))
_DIGEST = 32


def place_of(*parts: Any, arguments: Any = (), device: Any = None) -> Path | None:
    """Returns the file for what is made of static parts, for arguments like these; None if it is not to be kept.

    Files lie beside JAX's own in the user's cache directory; there are none if another place is configured for JAX's.

    Args:
        device: the device that it is compiled for.
    """
    folder = user_cache_directory() / "lantern_jax"
    is_ours = jax.config.jax_compilation_cache_dir == str(folder / "xla")
    if not (is_ours and _source() and _is_private(folder / "kept")):
        return None
    leaves, structure = jax.tree.flatten(arguments)
    try:
        kinds = [(leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False)) for leaf in leaves]
        text = repr((_described(parts), str(structure), kinds, _around(device)))
    except (_Unknown, AttributeError, RecursionError):
        return None
    # An address is different in the next process.
    return None if " at 0x" in text else folder / "kept" / hashlib.sha256(text.encode()).hexdigest()


def load_program(place: Path | None, device: Any) -> Callable | None:
    """Loads the compiled program in a file for a device; returns None if there is none that can be used."""

    def made(kept: tuple) -> Callable:
        return deserialize_and_load(*kept, device.client, [device])

    return _read(place, made)


def keep_program(place: Path | None, program: Callable) -> None:
    """Writes a compiled program to its file, or a note that JAX cannot serialise it; ignores failures."""
    try:
        written = None if place is None else serialize(program)
    except Exception:
        written = None
    _write(place, written)


def may_keep(place: Path | None) -> bool:
    """Tells whether a program could be kept in its file, as far as is known."""
    return place is not None and _read(place, lambda written: written is None) is not True


def remembered(function: Callable, *arguments: Any) -> Any:
    """Returns what a pure function makes of static arguments, from an earlier process if that was kept."""
    place = place_of(function, *arguments)
    found = _read(place, lambda kept: kept)
    if found is None:
        found = function(*arguments)
        _write(place, found)
    return found


def _read(place: Path | None, make: Callable[[Any], Any]) -> Any:
    """Returns what ``make`` makes of a file; None if it is missing or anything is wrong with it."""
    try:
        if place is None:
            return None
        with open_file(place) as file:
            content = file.read() if _is_own(os.fstat(file.fileno())) else b""
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            return None
        with contextlib.suppress(OSError):
            os.utime(place)
        return make(pickle.loads(content[_DIGEST:]))
    # A file that cannot be used is made anew, and real errors appear then.
    except Exception:
        return None


def _write(place: Path | None, made: Any) -> None:
    """Writes a file, ignoring failures, and removes those unused for longest."""
    if place is None:
        return
    try:
        content = pickle.dumps(made)
        write_file(place, hashlib.sha256(content).digest() + content)
        size = 0
        for status, file in sorted(_files(place.parent), key=lambda found: -found[0].st_mtime_ns):
            size += status.st_size
            if size > _MOST and file != place:
                file.unlink(missing_ok=True)
    # If the disk is full, say, the next process compiles.
    except Exception:
        return


def _files(folder: Path) -> Iterator[tuple[os.stat_result, Path]]:
    return ((file.stat(), file) for file in folder.iterdir() if not file.name.startswith("."))


# Reading a pickle may run anything, and so may loading a program, as JAX's cache does. So a file is read only if this
# user wrote it, into a folder that no one else can enter. Windows keeps others out of a user's folders by itself.


def _is_private(folder: Path) -> bool:
    """Tells whether a folder, made if it is missing, is this user's alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return _is_own(status) and (not hasattr(os, "getuid") or not status.st_mode & 0o077)


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


class _Unknown(Exception):
    """A value has no description that another process would give it too."""


def _described(value: Any) -> Any:
    """Describes a static value in words and numbers."""
    kind = type(value)
    if kind in (NoneType, bool, int, float, str, bytes) or isinstance(value, np.dtype):
        return kind.__name__, repr(value)
    if isinstance(value, PyTreeDef):
        return repr(value), *_nodes(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value)
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, tuple | list):
        return _name(kind), *map(_described, value)
    if isinstance(value, partial):
        return "partial", *map(_described, (value.func, value.args, value.keywords))
    if isinstance(value, MethodType):
        return value.__name__, _described(value.__self__)
    if isinstance(value, FunctionType) and "<" in value.__qualname__:
        return _closure(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return _name(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _name(kind), _described(fields)
    raise _Unknown


def _nodes(structure: PyTreeDef) -> Iterator[str]:
    """Yields the names of a tree's classes, since their methods count: a rule's methods decide its program."""
    if structure.node_data() is not None:
        yield _name(structure.node_data()[0])
        for child in structure.children():
            yield from _nodes(child)


def _closure(function: FunctionType) -> Any:
    """Describes a function without a name of its own by where it stands and by what it closes over."""
    if not _is_known(function.__module__):
        raise _Unknown
    held = (cell.cell_contents for cell in function.__closure__ or ())
    where = function.__module__, function.__qualname__, str(tuple(function.__code__.co_positions()))
    return where, _described((*held, function.__defaults__, function.__kwdefaults__))


def _name(value: Any) -> str:
    """Returns the name by which a class or function of a known package is found."""
    module, name = value.__module__, value.__qualname__
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value or not _is_known(module):
        raise _Unknown
    return f"{module}.{name}"


def _is_known(module: str) -> bool:
    return module in _KNOWN or module.startswith(tuple(f"{known}." for known in _KNOWN))


@cache
def _source() -> str:
    """Returns a digest of the source in this package that decides a program; "" if it is not in files."""
    digest, package = hashlib.sha256(), resources.files("lantern_jax")
    rooms = ROOMS if isinstance(package, Path) else ()
    files = [file for room in rooms for file in sorted((package / room).rglob("*.py"))]
    for file in files:
        digest.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    return digest.hexdigest() if files else ""


def _around(device: Any) -> tuple:
    """Returns what else decides a program: versions, the device, flags, and JAX's configuration."""
    others = {name: import_module(name).__version__ for name in ("einops", "flax", "numpy")}
    flags = sorted(item for item in os.environ.items() if item[0].startswith(("XLA_", "LIBTPU_")))
    configured = {name: repr(value) for name, value in jax.config.values.items() if "cache" not in name}
    kind: tuple = ()
    if device is not None:
        client = device.client
        kind = (str(device), device.device_kind, client.platform, client.platform_version, _processor())
    return versions(), others, _source(), kind, flags, sorted(configured.items())


@cache
def _processor() -> str:
    """Returns what this machine's processor can do, if the system tells: machines may share home directories."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""
