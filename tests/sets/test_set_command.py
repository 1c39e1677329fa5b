"""The ``lantern set`` command: what it writes, refuses and survives."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lantern_jax.engine.engine
import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.sets.reading import read_set
from lantern_jax.apps.terminal.locks import sole
from lantern_jax.pipeline import plan as call_plan
from tests.command import assert_refused, files, must_not_run
from tests.quick_compilation import QUICK_COMPILATION
from tests.sets.making import contents
from tests.tiny_checkpoint import pipeline_on

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["a lake", "a foggy forest", "snowy mountains at dusk", "hills", "the sea at night"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, tiny_loaded):
    """A current folder with prompts."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("\n".join(PROMPTS) + "\n")


def command(*more: str, prompts: str = "prompts.txt") -> list[str]:
    return [
        "set", "--prompts", prompts, "--out", "set", "--shard-size", "2", "--batch", "4", *more
    ]  # fmt: skip


def written() -> dict[str, int]:
    """Returns every file and when it was written."""
    return {path: Path(path).stat().st_mtime_ns for path in files(Path()) if Path(path).is_file()}


def test_a_set_in_two_parts(capsys):
    assert main(command("--worker", "2/2")) == 0
    printed = capsys.readouterr()
    said = "wrote 2 pictures in 1 shards to set, worker 2/2\n2 of 3 shards are left to other workers"
    assert said in printed.out
    assert "lacks 2 of 3 shards (number 0, 2)" in assert_refused(["set", "--check", "--out", "set"], capsys)
    assert main(command("--worker", "1/2")) == 0
    assert capsys.readouterr().out == "wrote 3 pictures in 2 shards to set, worker 1/2\n"
    assert main(["set", "--check", "--out", "set"]) == 0
    assert capsys.readouterr().out == "set is complete: 5 pictures\n"
    assert [picture.prompt for picture in read_set(Path("set"))] == PROMPTS


def test_a_complete_set_computes_nothing(capsys, monkeypatch, tiny_folder):
    """Nor does a command for another set."""
    assert main(command("--num", "1")) == 0
    capsys.readouterr()
    before = written()
    with monkeypatch.context() as patch:
        patch.setattr(lantern_jax.engine.engine.Engine, "start", must_not_run)
        assert main(command("--batch", "2")) == 0
        assert "wrote 0 pictures in 0 shards" in capsys.readouterr().out
        said = assert_refused(command("--seed", "1"), capsys)
        assert "set holds another set (seed 0, not 1)" in said
        said = assert_refused(command("--model", str(tiny_folder)), capsys)
        assert "holds another set (model " in said
    assert written() == before


def test_the_same_worker_twice_is_refused(capsys):
    assert main(command()) == 0
    before, _ = written(), capsys.readouterr()
    with sole(Path("set/worker-1-of-1")):
        said = assert_refused(command(), capsys)
        assert said.endswith("worker 1/1 is at work on set already: wait for it, or be another worker\n")
    # A killed worker's lock, from another number of workers, is removed once the set is complete.
    Path("set/.worker-3-of-9.lock").touch()
    assert main(command()) == 0
    assert written() == before


def test_ctrl_c_keeps_shards(capsys, monkeypatch):
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    refill, calls = lantern_jax.engine.engine.Engine.refill, []

    def stop(self, *arguments):
        calls.append(arguments)
        if Path("set/shard-00000").exists():
            raise KeyboardInterrupt
        return refill(self, *arguments)

    monkeypatch.setattr(lantern_jax.engine.engine.Engine, "refill", stop)
    assert main(command("--num", "4")) == 130
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"lantern: interrupted, [1-9] of 10 shards were written to set, .* kept: give", error)
    monkeypatch.setattr(lantern_jax.engine.engine.Engine, "refill", refill)
    assert main(command("--num", "4")) == 0
    assert len(list(read_set(Path("set")))) == 20


def test_a_worker_in_a_cluster_says_which_it_is(monkeypatch, capsys):
    for name, value in {"ID": "5", "MIN": "4", "MAX": "5", "COUNT": "2", "STEP": "1"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    for more in ((), ("--worker", "auto")):
        assert main(command(*more)) == 0
        printed = capsys.readouterr()
        assert printed.err.startswith("worker 2/2: task 5 of the SLURM array 4-5\n")
        assert "shards to set, worker 2/2\n2 of 3 shards are left" in printed.out


REFUSED = {
    "give --prompts FILE or --classes LIST": ["set", "--out", "set"],
    "one of the two": command("--classes", "0-3"),
    "--column names a column of a table": ["set", "--classes", "0-3", "--column", "A", "--out", "set"],
    "none.txt is not a file": command(prompts="none.txt"),
    "line 2 is empty": command(prompts="holes.txt"),
    "prompt 2 of the set, 'a whale': prompt: unknown word 'whale'": command(prompts="unknown.txt"),
    "worker '3' is not valid: give i/N": command("--worker", "3"),
    "--worker auto found no SLURM array": command("--worker", "auto"),
    "--shard-size 0 is not valid": command("--shard-size", "0"),
    "temperature -1.0 is not valid": command("--temperature", "-1"),
    "full exists and is not a picture set": command("--out", "full"),
    "file exists and is not a picture set": command("--out", "file"),
    "full is not a picture set": ["set", "--check", "--out", "full"],
    "--check reads the plan in the folder": command("--check"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused(line, capsys, monkeypatch):
    Path("holes.txt").write_text("a lake\n\na sea\n")
    Path("unknown.txt").write_text("a lake\na whale\n")
    Path("full").mkdir()
    Path("full/photo.png").write_text("x")
    Path("file").write_text("x")
    monkeypatch.setattr(lantern_jax.engine.engine.Engine, "start", must_not_run)
    assert line in assert_refused(REFUSED[line], capsys)


@pytest.mark.slow
def test_a_set_killed_at_a_random_moment_can_be_completed(tiny_folder, tmp_path, monkeypatch):
    """The command in a process of its own, killed with -9: in the end the set equals one made without a kill."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "XLA_FLAGS": " ".join(QUICK_COMPILATION), "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    # Its own cache keeps programs that compile quickly too.
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    # The set does not depend on how pictures are decoded; plain decoding compiles fastest.
    arguments = command("--num", "6", "--method", "ar", "--model", str(tiny_folder))
    killed = Path("killed")

    def start() -> subprocess.Popen:
        line = [sys.executable, "-m", "lantern_jax", *arguments, "--out", "killed"]
        return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    process = start()
    while process.poll() is None and not list(killed.glob("shard-?????")):
        time.sleep(0.002)
    time.sleep(random.Random(5).uniform(0, 0.02))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it finished before it was killed"
    assert 0 < len(list(killed.glob("shard-?????"))) < 15
    assert start().wait() == 0
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", lambda *_, **__: pipeline_on(1))
    assert main([*arguments, "--out", "whole"]) == 0
    ours = contents(killed)
    assert ours == contents(Path("whole")) and len(ours) == 1 + 15 + 30
