"""Notes of runs: the time per token and the tokens per pass, by window, so that the next run starts from them.

There is a small file for each checkpoint, device, dtype, sampling distribution and versions. It only makes runs faster:
one that cannot be read, written or trusted is ignored.
"""

import contextlib
import hashlib
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lantern_jax.checkpoints.windows import PLAIN, WindowPoint, read_acceptance, write_acceptance
from lantern_jax.devices.platform import versions
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, write_file
from lantern_jax.io.locks import sole
from lantern_jax.settings.choice import Known
from lantern_jax.settings.tuned import Key

FORMAT, VERSION = "lantern_jax notes of runs", 1
# The most bytes of a file; how many runs are kept per batch size and window; the weight of what was known before.
_LARGEST, _KEPT, _BEFORE = 10**5, 8, 0.7


@dataclass(frozen=True)
class Run:
    """What one call measured.

    Attributes:
        point: the window that it decoded with.
        tokens: tokens per pass.
        ms: milliseconds for one token of every picture in a batch.
    """

    point: WindowPoint
    tokens: float
    ms: float


@dataclass(frozen=True)
class Notes:
    """The notes of the calls with a key, in a folder."""

    folder: Path
    key: Key

    @property
    def file(self) -> Path:
        """Where they lie: calls with any batch size share the tokens per pass."""
        texts = {**asdict(replace(self.key, batch=1)), **versions()}
        mark = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16]
        return self.folder / f"{mark}.json"

    def known(self) -> Known:
        """Returns what is known about calls with the key's batch size: of the last times, the lower quartile counts."""
        content = self._read()
        times = _times(content, self.key.batch).items()
        ms = {point: statistics.quantiles(each * 2, n=4)[0] for point, each in times}
        return Known(read_acceptance(content.get("tokens")), ms)

    def add(self, *runs: Run) -> None:
        """Notes runs with the key's batch size; does nothing where that fails, or while another process is doing it."""
        with contextlib.suppress(LanternError, OSError), sole(self.file):
            content, batch = self._read(), str(self.key.batch)
            tokens, ms = read_acceptance(content.get("tokens")), _times(content, self.key.batch)
            for run in runs:
                if not all(math.isfinite(value) and value > 0 for value in (run.tokens, run.ms)):
                    continue
                if run.point.window:
                    before = tokens.get(run.point, run.tokens)
                    tokens[run.point] = _BEFORE * before + (1 - _BEFORE) * run.tokens
                ms[run.point] = [*ms.get(run.point, []), run.ms][-_KEPT:]
            batches = {
                **_mapping(content.get("ms")),
                batch: {_text(point): times for point, times in ms.items()},
            }
            made = {"format": FORMAT, "version": VERSION, "model": self.key.model, "device": self.key.device}
            made |= {"tokens": write_acceptance(tokens.items()), "ms": batches}
            write_file(self.file, json.dumps(made, indent=1) + "\n")

    def _read(self) -> Mapping[str, Any]:
        with contextlib.suppress(ValueError, OSError):
            content = _mapping(read_json(self.file, _LARGEST))
            if (content.get("format"), content.get("version")) == (FORMAT, VERSION):
                return content
        return {}


def _times(content: Mapping[str, Any], batch: int) -> dict[WindowPoint, list[float]]:
    """Returns the milliseconds noted for a batch size, those that can be trusted, by window."""
    found = {}
    for name, times in _mapping(_mapping(content.get("ms")).get(str(batch))).items():
        point = PLAIN if name == _text(PLAIN) else next(iter(read_acceptance({name: 1})), None)
        sound = isinstance(times, list) and all(isinstance(ms, int | float) and 0 < ms < 1e7 for ms in times)
        if point is not None and sound and times:
            found[point] = [float(ms) for ms in times[-_KEPT:]]
    return found


def _text(point: WindowPoint) -> str:
    return ",".join(map(str, point))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
