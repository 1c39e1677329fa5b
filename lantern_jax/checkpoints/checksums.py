"""Checksums of a checkpoint's files: bits that flipped and pages that were lost since it was written are told.

``config.json`` has them in its entry "checksums", by the file's name in the checkpoint: eight hexadecimal digits each,
its own among them. They say that files are as they were written, not who wrote them.

A file's is the CRC-32 of the CRC-32s (each little-endian) of its blocks, so that the blocks of one file are read by
several threads: on two cores that is 2 GB/s, against 0.3 GB/s of reading arrays.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lantern_jax import errors
from lantern_jax.files import open_file

CONFIG, SUMS = "config.json", "checksums"
# Folder -> the entry of config.json that lists its files.
FOLDERS = {"arrays": "files", "text_encoder": "text_encoder_files", "text": "text_files"}
BLOCK = 1 << 24
# Files that this process found to be right: (name, size, time, node on the disk, checksum). A drafter is often read
# after the target, from the same files.
_right: set[tuple[Any, ...]] = set()


def file_checksum(path: Path) -> str:
    """The checksum of a file's content."""

    def of_block(start: int) -> bytes:
        with open_file(path) as file:
            file.seek(start)
            return zlib.crc32(file.read(BLOCK)).to_bytes(4, "little")

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return f"{zlib.crc32(b''.join(threads.map(of_block, range(0, path.stat().st_size, BLOCK)))):08x}"


def with_checksums(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The content of a ``config.json`` with the checksums of the files that it lists, and its own."""
    sums = {name: file_checksum(directory / name) for name in listed(config)}
    return dict(config) | {SUMS: {CONFIG: _config_checksum(config, sums), **sums}}


def listed(config: Mapping[str, Any]) -> list[str]:
    """The names, in the checkpoint, of all files that a config lists."""
    lists = {folder: config.get(entry) for folder, entry in FOLDERS.items()}
    lists = {folder: names for folder, names in lists.items() if isinstance(names, Mapping)}
    return [f"{folder}/{name}" for folder, names in lists.items() for name in names]


def check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raises ValueError unless a config is as it was written; one that has no checksums passes."""
    if SUMS not in config:
        return
    sums = config[SUMS]
    texts = isinstance(sums, Mapping) and all(isinstance(value, str) for value in sums.values())
    if not texts or set(sums) - {CONFIG} != set(listed(config)):
        raise errors.damaged(path, f'its "{SUMS}" are not those of the files it lists')
    if CONFIG in sums and sums[CONFIG] != _config_checksum(config, sums):
        raise ValueError(
            f"{path} is not as it was written (another checksum): fetch or convert the checkpoint again, or, if you "
            f'changed it on purpose, take "{CONFIG}" out of its "{SUMS}"'
        )


def check_files(
    directory: Path, config: Mapping[str, Any], names: Iterable[str], again: bool = False
) -> None:
    """Raises ValueError unless files of a checkpoint are as they were written; a config may have no checksums.

    Args:
        names: of the files in the checkpoint.
        again: also those that this process found right before; else they are not read while size and time stay.
    """
    for name in names if SUMS in config else ():
        path, expected = directory / name, config[SUMS][name]
        status = path.stat()
        seen = str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino, expected
        if again or seen not in _right:
            if file_checksum(path) != expected:
                raise errors.damaged(path, "it is not as it was written: another checksum")
            _right.add(seen)


def _config_checksum(config: Mapping[str, Any], sums: Mapping[str, str]) -> str:
    """Of what a config says, whatever its spaces and order are, and of its files' checksums."""
    content = dict(config) | {SUMS: {name: value for name, value in sums.items() if name != CONFIG}}
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
