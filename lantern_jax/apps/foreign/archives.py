"""Zip archives of others, read only if what they declare fits the file: a few megabytes can declare terabytes."""

import contextlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file

# An archive may declare this many times its size, a small one always up to this many bytes.
_EXPANSION, _ALWAYS = 8, 64 * 2**20
_LOCAL_HEADER = 30
_KINDS = "biufU"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens an archive if its entries declare sizes that suit the file.

    Raises:
        LanternError: there is no such archive, or, inside the block, an entry is damaged.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            _check(archive, os.fstat(file.fileno()).st_size)
            yield archive
    except (
        zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, OverflowError, MemoryError,
        UnicodeDecodeError,
    ) as error:  # fmt: skip
        raise LanternError(
            f"{path} is not a whole archive ({errors.short(error)}): fetch it again or name another"
        ) from error


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads (shape, whether columns come first, dtype) at the start of an array in NumPy's format.

    Raises:
        LanternError: no such header, or an array of Python objects.
    """
    try:
        version = np.lib.format.read_magic(file)
        shape, columns_first, dtype = _HEADERS[version](file)
    # NumPy parses it as Python, which may raise anything.
    except Exception as error:
        raise LanternError(f"it does not begin as an array ({errors.short(error)})") from error
    if dtype.kind not in _KINDS or any(size < 0 for size in shape):
        raise LanternError(
            f"{errors.short(dtype)} {errors.short(list(shape))} is not an array of numbers or text"
        )
    return shape, columns_first, dtype


def place_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Returns the byte at which an entry's contents, stored uncompressed, begin.

    Raises:
        LanternError: the entry is compressed, or does not begin where the archive says.
    """
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise LanternError(f"{errors.short(entry.filename)} is compressed")
    assert archive.fp is not None
    archive.fp.seek(entry.header_offset)
    header = archive.fp.read(_LOCAL_HEADER)
    if len(header) != _LOCAL_HEADER or header[:4] != b"PK\3\4":
        raise LanternError(f"{errors.short(entry.filename)} is not where the archive says")
    start = entry.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", header[26:]))
    if start + entry.file_size > archive.start_dir:
        raise LanternError(f"{errors.short(entry.filename)} is truncated")
    return start


def _check(archive: zipfile.ZipFile, size: int) -> None:
    declared = sum(entry.file_size for entry in archive.infolist())
    if declared > max(_ALWAYS, _EXPANSION * size):
        raise zipfile.BadZipFile(f"it has {size} bytes and declares {declared}")
