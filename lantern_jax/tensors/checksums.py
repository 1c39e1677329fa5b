"""What a checkpoint's files hold, as short digests that show whether two are the same."""

import hashlib
from functools import lru_cache
from pathlib import Path

from lantern_jax.io.files import open_file, read_bounded

CONFIG = "config.json"
# The most bytes of a config; the demo's has 15 KB.
MOST_BYTES = 1 << 22


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal digits, as the Hugging Face hub shows it."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
