"""Telling checkpoints apart without reading all of them."""

import hashlib
import io
from pathlib import Path

from lantern_jax.checkpoints.checksums import FOLDERS
from lantern_jax.files import open_file

# Files up to so many bytes are read whole, of larger ones so many samples of so many bytes, evenly spread.
WHOLE, SAMPLES, SAMPLE = 1 << 20, 64, 1 << 12


def checkpoint_digest(directory: str | Path) -> str:
    """32 hexadecimal digits that a checkpoint and its copies share.

    Of ``config.json`` and of every file in the folders of arrays and texts: its name, its size, and its contents, those
    of large files in samples. The same weights converted once more are another checkpoint, since data files have random
    names.
    """
    directory, digest = Path(directory), hashlib.sha256()
    files = [path for folder in FOLDERS for path in (directory / folder).rglob("*") if path.is_file()]
    for path in [directory / "config.json", *sorted(files)]:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(directory).as_posix()}\0{size}\0".encode())
        # An empty file has said all by its size.
        with open_file(path) if size else io.BytesIO() as file:
            if size <= WHOLE:
                digest.update(file.read())
            else:
                for sample in range(SAMPLES):
                    file.seek(sample * (size - SAMPLE) // (SAMPLES - 1))
                    digest.update(file.read(SAMPLE))
    return digest.hexdigest()[:32]
