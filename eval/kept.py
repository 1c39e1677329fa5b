"""What `eval.methods` keeps of a run, so that the same command continues it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from eval.report import to_json
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_arrays, read_json, write_file

PLAIN, REAL = "ar", "real"


class Keeper:
    """What is kept of a run: a file for every batch of a setting, and plain decoding's seconds, under the run's setup.

    Raises:
        LanternError: the folder holds another setup's.
    """

    def __init__(self, folder: Path, setup: Mapping[str, Any]):
        self.folder, path = folder, folder / "setup.json"
        kept = read_json(path, 2**20) if path.exists() else {}
        # Entries that an older folder does not have are added now.
        changed = ", ".join(name for name in kept if kept[name] != setup.get(name))
        if changed:
            raise LanternError(f"{folder} holds pictures of another setup ({changed}): name a new folder")
        write_file(path, to_json(setup), parents=True)
        # Speeds are compared within one call of the command: on another day the machine may be slower.
        self.call, self._times = time.time_ns(), folder / "plain_seconds.json"
        self._seconds = read_json(self._times, 2**24) if self._times.exists() else {}

    def path(self, setting: str, number: int) -> Path:
        """Returns the file of a batch."""
        return self.folder / f"{quote(setting, safe='')}-{number:05d}.npz"

    def has(self, setting: str, number: int) -> bool:
        """Tells whether a batch was made, and its plain decoding timed in the same call."""
        path = self.path(setting, number)
        if setting == REAL or not path.exists():
            return path.exists()
        return self._plain_seconds(number, read_arrays(path)) is not None

    def write(self, setting: str, number: int, arrays: Mapping[str, Any]) -> None:
        """Keeps a batch; for plain decoding, its seconds too."""
        arrays = {**arrays, "call": self.call}
        write_file(self.path(setting, number), lambda file: np.savez_compressed(file, **arrays))
        if setting == PLAIN:
            self.write_plain_seconds(number, arrays["seconds"])

    def write_plain_seconds(self, number: int, seconds: float) -> None:
        """Keeps how long plain decoding of a batch took in this call of the command."""
        self._seconds.setdefault(str(self.call), {})[str(number)] = seconds
        write_file(self._times, to_json(self._seconds))

    def read(self, setting: str, count: int) -> list[dict[str, np.ndarray]]:
        """Returns the first ``count`` batches, with the seconds of plain decoding in the call that made each."""
        batches = [read_arrays(self.path(setting, number)) for number in range(count)]
        if setting == REAL:
            return batches
        return [
            made | {"plain_seconds": self._plain_seconds(number, made)} for number, made in enumerate(batches)
        ]

    def _plain_seconds(self, number: int, made: Mapping[str, np.ndarray]) -> float | None:
        """Returns plain decoding's seconds in the call that made a batch; files that name no call are all of one."""
        if "call" in made:
            return self._seconds.get(str(int(made["call"])), {}).get(str(number))
        path = self.path(PLAIN, number)
        return float(read_arrays(path)["seconds"]) if path.exists() else None
