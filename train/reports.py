"""What a run reports: lines of metrics to its file, and a progress bar or lines to people."""

import json
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lantern_jax.apps.terminal.console import Console
from lantern_jax.devices import hosts
from lantern_jax.io.files import read_text, write_file
from train.script import reading

_LARGEST = 2**28  # The most bytes of a run's metrics.


class MetricsFile:
    """A file of one JSON object per line; a killed run's lines of steps after `step` are dropped first."""

    def __init__(self, path: Path, step: int):
        kept = []  # An empty file is of a run that was killed before its first line.
        if path.exists() and path.stat().st_size:
            with reading(path, "remove it, or name another --workdir"):
                whole = [line for line in read_text(path, _LARGEST).splitlines(True) if line.endswith("\n")]
                kept = [line for line in whole if json.loads(line)["step"] <= step]
        write_file(path, "".join(kept))
        self._file = path.open("a", buffering=1)

    def write(self, values: dict[str, float]) -> None:
        self._file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        self._file.close()


class Reporter:
    """A progress bar in a terminal, plain lines elsewhere."""

    def __init__(self, steps: int, done: int, unit: str = "step"):
        console = Console()
        self._steps, self._unit = steps, unit
        self._progress = None
        if console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text)
            self._progress = Progress(*columns, console=console)
            self._task = self._progress.add_task("starting", total=steps, completed=done)
            self._progress.start()

    def show(self, values: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "step")
        if self._progress is None:
            print(f"{self._unit} {values['step']}/{self._steps}  {text}", flush=True)
        else:
            self._progress.update(self._task, completed=values["step"], description=text)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class Log:
    """The report of a training run, to its file and to people; with several processes, the first one makes it."""

    def __init__(self, workdir: Path, done: int, steps: int):
        self._parts = (
            (MetricsFile(workdir / "metrics.jsonl", done), Reporter(steps, done)) if hosts.is_first() else ()
        )

    def write(self, values: dict[str, float]) -> None:
        if self._parts:
            file, reporter = self._parts
            file.write(values)
            reporter.show(values)

    def close(self) -> None:
        for part in self._parts:
            part.close()
