"""Several processes on one mesh: ``jax.distributed`` on this machine, two devices per process."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.sets.reading import read_set
from lantern_jax.devices import hosts
from tests.command import assert_refused
from tests.quick_compilation import QUICK_COMPILATION
from tests.tiny_checkpoint import PROMPTS, tiny_pipeline

ROOT = Path(__file__).resolve().parents[2]


def processes(count: int, *arguments: str) -> list[subprocess.Popen]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    flags = " ".join([*QUICK_COMPILATION, "--xla_force_host_platform_device_count=2"])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-m", "lantern_jax", *arguments]
    return [
        subprocess.Popen(
            [*line, "--hosts", f"{address},{number}/{count}"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(1, count + 1)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_set_over_two_processes_is_that_of_one(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    line = "--prompts prompts.txt --out set --shard-size 3 --batch 4 --mesh data=2,model=2 --method gumbel"
    started = processes(2, "set", "--model", str(tiny_folder), *line.split())
    printed = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    # The library that connects CPU processes reports that first.
    assert printed[0][0].splitlines()[-1] == f"wrote {len(PROMPTS)} pictures in 3 shards to set, worker 1/1"
    assert printed[1] == ("", ""), "only the first process prints"
    expected = tiny_pipeline().generate(PROMPTS, method="gumbel", batch=4)
    pictures = list(read_set(Path("set")))
    assert [picture.prompt for picture in pictures] == list(PROMPTS)
    np.testing.assert_array_equal([picture.tokens for picture in pictures], expected.tokens)


@pytest.mark.exhaustive  # Waits half a minute for heartbeats that do not come.
def test_a_lost_process_is_an_error_in_the_others(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["generate", *PROMPTS, *f"--num 400 --batch 4 --model {tiny_folder} --out pictures/".split()]
    first, second = processes(2, *words, "--mesh", "data=2,model=2")
    time.sleep(12)
    assert second.poll() is None
    second.kill()
    killed = time.monotonic()
    second.communicate()
    _, said = first.communicate(timeout=60)
    assert time.monotonic() - killed < 60 and first.returncode
    assert not Path("pictures").exists()
    assert "another task died" in said or "lost each other" in said


@pytest.mark.parametrize("text", ["here", "host:1", "host:1,3/2", ":1,1/2"])
def test_invalid_hosts_are_refused(text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = assert_refused(["generate", "a lake", "--hosts", text], capsys)
    assert f"--hosts {text!r} is not valid: give" in line
    assert not tiny_pipeline().engine.spans and not hosts.joined() and hosts.is_first()
