"""A persistent cache of compiled programs whose key needs no tracing.

JAX's own cache knows a program by its text, whose writing takes longer than decoding a small picture. Here it is known
by what it was made from, in words: a config, settings, shapes, this package's source, the environment.
"""

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from lantern_jax.devices.compilation import user_cache_directory
from lantern_jax.devices.platform import environment
from lantern_jax.io.files import open_file, write_file
from lantern_jax.io.plugins import registered

_MOST, _DIGEST = 500 * 2**20, 32  # Bytes that are kept, the last used ones, and of a checksum.


def place_of(*parts: Any, device: Any = None) -> Path | None:
    """Returns the file, beside JAX's own, for what is made from parts with the same ``repr``; None to keep nothing."""
    place = user_cache_directory() / "lantern_jax"
    # Another package's source is not described.
    if jax.config.jax_compilation_cache_dir != str(place / "xla") or registered():
        return None
    text = repr((parts, environment(device)))
    place = place / "kept" / hashlib.sha256(text.encode()).hexdigest()
    # An address is different in the next process.
    return place if " at 0x" not in text and _is_private(place.parent) else None


def read(place: Path | None) -> Any:
    """Returns what was kept; None if there is nothing, or anything is wrong with it."""
    with contextlib.suppress(Exception), open_file(place) as file:
        digest, content = file.read(_DIGEST), file.read()
        if hashlib.sha256(content).digest() == digest:
            os.utime(place)
            return pickle.loads(content)


def write(place: Path | None, made: Any) -> None:
    """Keeps what was made and removes what was unused for longest; if the disk is full, say, nothing is kept."""
    with contextlib.suppress(Exception):
        content = pickle.dumps(made)
        write_file(place, hashlib.sha256(content).digest() + content)
        size = 0
        for file in sorted(place.parent.glob("[!.]*"), key=lambda file: -file.stat().st_mtime_ns):
            size += file.stat().st_size
            if size > _MOST and file != place:
                file.unlink()


def load_program(place: Path | None, device: Any) -> Callable | None:
    """Loads a compiled program for a device; returns None if there is none."""
    with contextlib.suppress(Exception):
        return deserialize_and_load(*read(place), device.client, [device])


def keep_program(place: Path | None, program: Callable) -> None:
    """Keeps a compiled program, or a note that JAX cannot serialise it."""
    kept: Any = False
    with contextlib.suppress(Exception):
        kept = place is not None and serialize(program)
    write(place, kept)


def _is_private(folder: Path) -> bool:
    """Tells whether a folder, made if it is missing, is this user's alone: reading a pickle may run anything."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, user = folder.lstat(), getattr(os, "getuid", None)
        return user is None or (status.st_uid == user() and not status.st_mode & 0o077)
    return False
