"""Ctrl-C and SIGTERM, in separate processes and in this one: one line, a status, nothing lost."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.commands.command_line import run
from lantern_jax.io import interruption
from lantern_jax.io.errors import LanternError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

# A process that says when it is at work: it only waits, or runs steps and may stop at the end of one.
STEPS = """
import sys, time
from lantern_jax.apps.commands.command_line import leave, run
from lantern_jax.io.errors import LanternError
from train.signals import deferred
def work():
    if sys.argv[1] == "waits":
        print("at work", flush=True)
        time.sleep(60)
    with deferred() as came:
        for step in range(600):
            print("at work", flush=True)
            time.sleep(0.1 if sys.argv[1] == "short" else 60)
            if came():
                raise KeyboardInterrupt(f"{came()}, step {step} is saved")
leave(run("train.tokenizer", work))
"""
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@pytest.fixture(autouse=True)
def usual():
    """Signals are handled as in a separate process, even where the tests run with SIGINT ignored."""
    before = {number: signal.getsignal(number) for number in WORDS}
    signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def started(kind: str) -> subprocess.Popen:
    """Returns a process that is at work."""
    line = [sys.executable, "-c", STEPS, kind]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "at work\n"
    return process


@pytest.mark.parametrize("number", WORDS)
def test_a_process_finishes_its_step(number):
    for kind, more in (("waits", ""), ("short", r", step \d+ is saved")):
        process = started(kind)
        process.send_signal(number)
        assert re.fullmatch(f"train.tokenizer: {WORDS[number]}{more}\n", process.communicate(timeout=30)[1])
        assert process.returncode == 128 + number


def test_a_second_sigterm_ends_a_process_immediately():
    process = started("long")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[1] == "train.tokenizer: terminated\n"
    assert process.returncode == 143


@pytest.mark.parametrize("command", [["lantern_jax", "info", "demo"], ["eval.results"]])
def test_an_interrupt_before_work_begins_ends_the_command(command, tmp_path):
    """A module that the command imports first of all raises the signal."""
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    line = [sys.executable, "-m", *command]
    done = subprocess.run(
        line, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    name = command[0].replace("lantern_jax", "lantern")
    assert (done.returncode, done.stderr, done.stdout) == (130, f"{name}: interrupted\n", "")


class Dropping:
    """An object that interrupts while it is destroyed, where Python drops what is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def dropped():
    Dropping()
    interruption.raise_if_signalled()
    time.sleep(30)


def made_an_error():
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        raise SystemError("returned a result with an exception set") from None


def swallowed():
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("work", "status"), [(dropped, 130), (made_an_error, 143), (swallowed, 130)])
def test_an_interrupt_that_is_dropped_or_swallowed_still_counts(work, status, capfd, monkeypatch):
    """And the handlers are restored."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    began = time.perf_counter()
    assert run("lantern", work) == status
    assert time.perf_counter() - began < 10
    assert capfd.readouterr().err == f"lantern: {WORDS[status - 128]}\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def refuse():
    raise LanternError("seed -1 is not valid: give a whole number")


def test_only_errors_that_the_caller_can_mend_are_one_line(capfd):
    assert run("lantern", refuse) == 2
    assert capfd.readouterr().err == "lantern: error: seed -1 is not valid: give a whole number\n"
    for bug in (lambda: {}["missing"], lambda: int("x"), lambda: np.zeros(2) + np.zeros(3)):
        assert run("lantern", bug) == 1
        lines = capfd.readouterr().err.splitlines()
        assert lines[0].startswith("Traceback") and lines[-1].startswith(
            "lantern: this is a bug of lantern_jax"
        )


@pytest.mark.parametrize("number", WORDS)
def test_a_signal_may_be_the_usual_end(number, capfd):
    def work():
        with interruption.as_the_end():
            signal.raise_signal(number)

    assert run("lantern", work) == 0 and capfd.readouterr().err == ""


def test_signals_that_are_ignored_stay_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert run("lantern", lambda: signal.raise_signal(signal.SIGINT)) == 0
