"""Checkpoints of several files, and files that somebody changes: sizes and checksums in their configs are right."""

import json
from pathlib import Path
from unittest import mock

from lantern_jax.checkpoints import arrays
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import save
from lantern_jax.tensors import checksums


def save_sharded(folder: Path, checkpoint: Checkpoint) -> Path:
    """Saves a checkpoint whose arrays fill several files, small as they are."""
    with mock.patch.object(arrays.write_arrays, "__defaults__", (lambda _: None, 20_000)):
        return save(folder, checkpoint)


def replace(folder: Path, name: str, content: bytes) -> None:
    """Rewrites one file of a checkpoint, and corrects the config."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (folder / name).write_bytes(content)
    config["files"][name] = len(content)
    config["checksums"][name] = checksums.file_checksum(folder / name)
    path.write_text(json.dumps(config))
