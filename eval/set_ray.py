"""A picture set made on a Ray cluster whose workers are killed and join late, against the set of a single process.

    python -m eval.set_ray [--pictures 400] [--shard-size 10] [--model demo] [--out FILE.json]

The cluster is two machines of one CPU each, both on this one. Once a third of the shards is there a worker is killed
with -9, and a third machine joins. A second set is made with ``--ray local``, stopped by Ctrl-C half way and gone on
with. Both are to be byte for byte what the command makes without Ray.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from eval.set_kills import differences, prompts
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file

ROOT = Path(__file__).resolve().parents[1]
# Of a worker's process while it makes a shard.
BUSY = b"ray::SetWorker.make"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was seen.

    Attributes:
        shards: of the set.
        at_kill: shards that were there when a worker was killed.
        workers: how many different ones wrote shards, by their processes.
        seconds: of the process without Ray, of the cluster, of both runs of the local one.
        notes: what the command said of workers on the cluster.
        at_interrupt: what it said at Ctrl-C.
        differing: names of files that are not the same, by set; empty where all is well.
    """

    shards: int
    at_kill: int
    workers: int
    seconds: dict[str, float]
    notes: tuple[str, ...]
    at_interrupt: str
    differing: dict[str, tuple[str, ...]]


def processes(name: bytes) -> set[int]:
    """Numbers of the processes that have a name in their command line."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(name):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


class _Runs:
    """The command in processes of its own."""

    def __init__(self, folder: Path, options: Sequence[str]):
        self.folder, self.options = folder, options
        self.environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": ""}

    def start(self, name: str, *more: str) -> subprocess.Popen:
        line = [
            sys.executable,
            "-m",
            "lantern_jax",
            "set",
            *self.options,
            "--out",
            str(self.folder / name),
            *more,
        ]
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                line, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def shards(self, name: str) -> int:
        return len(list((self.folder / name).glob("*.tar")))

    def log(self, name: str) -> list[str]:
        return (self.folder / f"{name}.log").read_text().splitlines()

    def until(self, name: str, shards: int, process: subprocess.Popen) -> None:
        while self.shards(name) < shards:
            if process.poll() is not None:
                raise LanternError(f"it ended early: {self.log(name)[-5:]}")
            time.sleep(0.01)

    def ended(self, name: str, process: subprocess.Popen, status: int = 0) -> None:
        if process.wait(600) != status:
            raise LanternError(f"exit status {process.returncode}: {self.log(name)[-5:]}")


def _on_a_cluster(runs: _Runs, shards: int) -> tuple[int, int]:
    """Shards at the kill, and how many processes made some."""
    from ray.cluster_utils import Cluster

    machine = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=machine)
    process = None
    try:
        cluster.add_node(num_cpus=1, object_store_memory=machine["object_store_memory"])
        process, seen = runs.start("cluster", "--ray", cluster.address), set()
        runs.until("cluster", max(1, shards // 3), process)
        # Both of the first two are at work.
        while len(busy := processes(BUSY)) < 2 and process.poll() is None:
            time.sleep(0.01)
        at_kill = runs.shards("cluster")
        os.kill(max(busy), signal.SIGKILL)
        cluster.add_node(num_cpus=1, object_store_memory=machine["object_store_memory"])
        seen |= busy
        while process.poll() is None:
            seen |= processes(BUSY)
            time.sleep(0.05)
        runs.ended("cluster", process)
        return at_kill, len(seen)
    finally:
        if process is not None:
            process.kill()
        cluster.shutdown()


def run(folder: Path, options: Sequence[str]) -> Outcome:
    """Makes all three sets in a folder and compares them; ``options``: of the command, for all."""
    runs, seconds = _Runs(folder, options), {}

    began = time.perf_counter()
    runs.ended("whole", runs.start("whole"))
    seconds["alone"] = time.perf_counter() - began
    shards = runs.shards("whole")
    began = time.perf_counter()
    at_kill, workers = _on_a_cluster(runs, shards)
    seconds["cluster"] = time.perf_counter() - began
    began = time.perf_counter()
    words = ("--ray", "local", "--ray-workers", "2")
    process = runs.start("local", *words)
    runs.until("local", shards // 2, process)
    os.killpg(process.pid, signal.SIGINT)
    runs.ended("local", process, 130)
    at_interrupt = runs.log("local")[-1]
    runs.ended("local", runs.start("local", *words))
    seconds["local"] = time.perf_counter() - began
    differing = {name: differences(folder / name, folder / "whole") for name in ("cluster", "local")}
    notes = tuple(line for line in runs.log("cluster") if line.startswith("worker "))
    return Outcome(shards, at_kill, workers, seconds, notes, at_interrupt, differing)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=arguments.whole(), default=400)
    parser.add_argument("--shard-size", type=arguments.whole(), default=10)
    parser.add_argument("--model", type=arguments.model, default="demo")
    parser.add_argument("--out", type=arguments.new_file)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.txt"
        file.write_text("\n".join(prompts(given.pictures)) + "\n")
        options = ["--prompts", str(file), "--shard-size", str(given.shard_size), "--model", given.model]
        outcome = run(Path(folder), options)
    text = json.dumps(dataclasses.asdict(outcome), indent=1) + "\n"
    print(text, end="")
    if given.out is not None:
        write_file(given.out, text)
    raise SystemExit(any(outcome.differing.values()))


if __name__ == "__main__":
    run_script(main)
