"""Checksums of a checkpoint's files, which show flipped bits and lost pages.

A file's checksum is the CRC-32 of its blocks' CRC-32s (each little-endian), so that several threads can read the blocks
of one file. Data is summed while it is in the processor's cache: a pass that puts arrays where they belong costs little
more than one that only verifies.
"""

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.files import open_file, read_bounded

CONFIG, FILES, SUMS = "config.json", "files", "checksums"
# The most bytes of a config; the demo's has 15 KB.
MOST_BYTES = 1 << 22
# Multiples of every dtype's size, so that no number lies in two of them.
BLOCK, PIECE = 1 << 24, 1 << 20
THREADS = min(8, os.cpu_count() or 1)
# Files that this process has verified: (name, size, time, inode, checksum). A drafter is often read after the target,
# from the same files.
_right: set[tuple[Any, ...]] = set()

# An array in a file: (its first byte, the flat array that takes its numbers, the stored dtype).
Target = tuple[int, np.ndarray, np.dtype]


class Summing:
    """The checksum of a file that is being written."""

    def __init__(self):
        self._sums, self._crc, self._left = b"", 0, BLOCK

    def add(self, data: memoryview) -> None:
        """Adds the bytes that come next."""
        while len(data):
            part, data = data[: self._left], data[self._left :]
            self._crc, self._left = zlib.crc32(part, self._crc), self._left - len(part)
            if not self._left:
                self._sums, self._crc, self._left = self._sums + self._crc.to_bytes(4, "little"), 0, BLOCK

    @property
    def checksum(self) -> str:
        """The checksum of the bytes so far."""
        last = self._crc.to_bytes(4, "little") if self._left < BLOCK else b""
        return f"{zlib.crc32(self._sums + last):08x}"


def checksum_of(blocks: Iterable[int]) -> str:
    """Returns the checksum of a file whose blocks have these CRC-32s."""
    return f"{zlib.crc32(b''.join(block.to_bytes(4, 'little') for block in blocks)):08x}"


def read_block(path: Path, start: int, targets: Sequence[Target] = ()) -> int:
    """Reads one block of a file, puts its numbers into the arrays that they belong to, and returns its CRC-32.

    Args:
        start: the block's first byte.
        targets: arrays that lie in it, wholly or in part; numbers are cast to their dtypes.

    Raises:
        LanternError: the file cannot be read, or is shorter than its arrays.
    """
    scratch, place, crc = np.empty(PIECE, np.uint8), start, 0
    try:
        with open_file(path) as file:
            file.seek(start)
            while got := file.readinto(scratch[: start + BLOCK - place]):
                crc = zlib.crc32(scratch[:got], crc)
                for first, numbers, stored in targets:
                    begin, end = max(first, place), min(_end(first, numbers, stored), place + got)
                    if begin < end:
                        room = numbers[(begin - first) // stored.itemsize : (end - first) // stored.itemsize]
                        with np.errstate(all="ignore"):
                            room[:] = scratch[begin - place : end - place].view(stored)
                place += got
    except OSError as error:
        raise errors.damaged(path, error.strerror or str(error)) from error
    if place < start + BLOCK and any(_end(*target) > place for target in targets):
        raise errors.damaged(path, "it ends too early")
    return crc


def _end(first: int, numbers: np.ndarray, stored: np.dtype) -> int:
    return first + numbers.size * stored.itemsize


def file_checksum(path: Path) -> str:
    """Returns the checksum of a file's content."""
    with ThreadPoolExecutor(THREADS) as threads:
        starts = range(0, path.stat().st_size, BLOCK)
        return checksum_of(threads.map(lambda start: read_block(path, start), starts))


def check_file(path: Path, expected: str, again: bool = False) -> None:
    """Raises LanternError unless a file has this checksum.

    Args:
        again: also if this process has verified the file, otherwise skipped while its size and time are unchanged.
    """
    if again or not is_right(path, expected):
        found_right(path, expected, file_checksum(path))


def checkpoint_digest(directory: str | Path) -> str:
    """Returns 32 hexadecimal digits, a hash of a checkpoint's config, which lists all files with their checksums.

    Copies of the checkpoint share it, and so do the same weights converted again from files of the same names.
    """
    file = Path(directory) / CONFIG
    status = file.stat() if file.is_file() else None
    return _digest(file.absolute(), status and (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=64)
def _digest(file: Path, state: tuple[int, int] | None) -> str:
    """Hashes a file once for each of its states (size, time of change)."""
    return hashlib.sha256(read_bounded(file, MOST_BYTES)).hexdigest()[:32]


def is_right(path: Path, expected: str) -> bool:
    """Tells whether this process has found that the file has this checksum."""
    return _seen(path, expected) in _right


def found_right(path: Path, expected: str, found: str) -> None:
    """Notes that a file has the expected checksum; raises LanternError if it has another."""
    if found != expected:
        raise errors.damaged(path, "it is not as it was written: another checksum")
    _right.add(_seen(path, expected))


def _seen(path: Path, expected: str) -> tuple[Any, ...]:
    status = path.stat()
    return str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino, expected
