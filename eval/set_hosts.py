"""A picture set by two processes that share one mesh, again and again, against the set of one process; and kills.

    python -m eval.set_hosts [--pictures 4] [--mesh data=1,model=4] [--runs 10] [--kills 2] [--out FILE.json]

All are made by the command itself with the demo on four devices of this machine's CPU: of one process, or two a
process. A run that takes ten times as long as the slowest before it counts as hanging. A kill is of the second process,
at a random moment after the first shard: how long the first one lives on, and the last line it says.
"""

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.set_kills import prompts
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.io.files import write_file
from lantern_jax.sets.reading import read_set

DEVICES = 4
# Seconds after which a run hangs, before anything is known of how long one takes.
PATIENCE = 600


def start(folder: Path, mesh: str, name: str, processes: int) -> list[subprocess.Popen]:
    """The command as so many processes, whose devices are four together."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={DEVICES // processes}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-m", "lantern_jax", "set", "--prompts", str(folder / "prompts.txt")]
    line += ["--out", str(folder / name), "--shard-size", "2", "--batch", "2", "--no-sums", "--mesh", mesh]
    return [
        subprocess.Popen(
            line if processes == 1 else [*line, "--hosts", f"{address},{number}/{processes}"],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for number in range(1, processes + 1)
    ]  # fmt: skip


def tokens(folder: Path) -> np.ndarray:
    """The tokens of a set's pictures."""
    return np.stack([picture.tokens for picture in read_set(folder)])


def run_whole(folder: Path, mesh: str, name: str, processes: int, patience: float) -> float:
    """Seconds of a set; RuntimeError where a process fails or hangs."""
    began = time.perf_counter()
    for process in start(folder, mesh, name, processes):
        try:
            _, said = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} hangs after {patience:.0f} s") from None
        if process.returncode:
            raise RuntimeError(f"{name} failed: {said}")
    return time.perf_counter() - began


def run_killed(folder: Path, mesh: str, name: str, wait: float) -> dict:
    """The second of two processes is killed so long after the first shard: what becomes of the first one."""
    first, second = start(folder, mesh, name, 2)
    while not list((folder / name).glob("*.tar")) and first.poll() is None:
        time.sleep(0.1)
    time.sleep(wait)
    second.kill()
    second.communicate()
    killed = time.perf_counter()
    _, said = first.communicate(timeout=120)
    reasons = [line for line in said.splitlines() if "died" in line or "lost each other" in line]
    return {
        "seconds_to_the_end": time.perf_counter() - killed, "status": first.returncode, "said": reasons[:1],
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=arguments.whole(), default=4)
    parser.add_argument("--mesh", default="data=1,model=4")
    parser.add_argument("--runs", type=arguments.whole(), default=10)
    parser.add_argument("--kills", type=arguments.whole(0), default=2)
    parser.add_argument("--out", type=arguments.new_file)
    given = parser.parse_args(argv)
    mesh_sizes(given.mesh)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prompts.txt").write_text("\n".join(prompts(given.pictures)) + "\n")
        alone = run_whole(folder, given.mesh, "alone", 1, PATIENCE)
        expected, seconds, shares = tokens(folder / "alone"), [], []
        for run in range(given.runs):
            patience = 10 * max(seconds) if seconds else PATIENCE
            seconds.append(run_whole(folder, given.mesh, f"run-{run}", 2, patience))
            shares.append(float(np.mean(tokens(folder / f"run-{run}") == expected)))
            print(
                f"run {run + 1}: {seconds[-1]:.0f} s, {shares[-1]:.2%} of the tokens of one process",
                flush=True,
            )
        generator = random.Random(0)
        kills = [
            run_killed(folder, given.mesh, f"killed-{kill}", generator.uniform(0, 5))
            for kill in range(given.kills)
        ]
    report = {
        "pictures": given.pictures, "mesh": given.mesh, "seconds_of_one_process": alone,
        "seconds_of_two": statistics.median(seconds), "same_tokens": min(shares), "kills": kills,
    }  # fmt: skip
    text = json.dumps(report, indent=1) + "\n"
    print(text, end="")
    if given.out is not None:
        write_file(given.out, text)
    raise SystemExit(min(shares) < 1)


if __name__ == "__main__":
    run_script(main)
