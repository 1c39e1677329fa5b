"""Runs a training command to its end, and again with a kill -9 on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.quick_compilation import QUICK_COMPILATION

ROOT = Path(__file__).parents[2]
TIMEOUT = 600


def start_training(arguments, workdir, log):
    """Starts training on one device; the runs of a test share compiled programs."""
    environment = dict(os.environ) | {"XLA_FLAGS": " ".join(QUICK_COMPILATION)}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(workdir.parent / "compiled")
    command = [sys.executable, "-m", *arguments, "--workdir", str(workdir)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)


def wait_for_checkpoint(process, folder):
    deadline = time.monotonic() + TIMEOUT
    while not [p for p in folder.glob("step_*") if "tmp" not in p.name]:
        assert process.poll() is None, "training ended before its first checkpoint"
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.01)


def train_whole_and_killed(arguments, folder):
    """Returns folders of two runs of `python -m arguments...`: undisturbed; killed after a checkpoint and resumed."""
    whole, killed = folder / "whole", folder / "killed"
    with (folder / "log").open("w") as log:
        whole_code = start_training(arguments, whole, log).wait(TIMEOUT)
        process = start_training(arguments, killed, log)
        wait_for_checkpoint(process, killed / "checkpoints")
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "training ended before it was killed"
        resumed_code = start_training(arguments, killed, log).wait(TIMEOUT)
    assert (whole_code, resumed_code) == (0, 0), (folder / "log").read_text()[-2000:]
    return whole, killed


def read_metrics(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "examples_per_second"} for line in lines]
