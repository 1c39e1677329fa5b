"""Standard streams that are closed, full, unread or in another encoding: commands work, or say why not in one line."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lantern_jax.apps.commands.main import main

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
# Does what the command does before it imports anything else, prints everywhere and writes a file.
COMMAND = """
import sys
from lantern_jax.apps.terminal.streams import settle
settle()
from lantern_jax.apps.commands.command_line import leave, run
from lantern_jax.io.errors import LanternError
def work():
    sys.stdin.read()
    with open(sys.argv[1], "w") as file:
        print("to the one", flush=True), print("to the other", file=sys.stderr, flush=True)
        file.write("to the file")
    print(sys.argv[2])
    if sys.argv[2] == "fail":
        raise LanternError("nothing is right")
leave(run("lantern", work))
"""


def ran(*words: str, closed=(), **options) -> subprocess.CompletedProcess:
    """Runs the command in a process of its own, with some of its standard streams closed."""
    shut = "".join(f"os.close({number});" for number in closed)
    start = f"import os, sys;{shut}os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return subprocess.run(
        [sys.executable, "-c", start, "-c", COMMAND, *map(str, words)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("closed", [[0], [1], [2], [1, 2], [0, 1, 2]], ids=str)
def test_closed_streams_change_nothing(closed, tmp_path):
    """The file could get the descriptor of a closed stream, and then hold what is printed."""
    for word, status in (("done", 0), ("fail", 2)):
        made = ran(tmp_path / "file", word, closed=closed)
        assert (made.returncode, (tmp_path / "file").read_text()) == (status, "to the file")
        assert made.stdout.decode() == ("" if 1 in closed else f"to the one\n{word}\n")
        line = "lantern: error: nothing is right\n" * (status == 2)
        assert made.stderr.decode() == ("" if 2 in closed else f"to the other\n{line}")


def test_characters_that_an_encoding_lacks_are_escaped(tmp_path):
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    made = ran(tmp_path / "é", "é", env=os.environ | ascii_only)
    assert (made.returncode, (tmp_path / "é").read_text()) == (0, "to the file")
    assert made.stdout.startswith(b"to the one\n\\") and made.stdout.isascii()


class Stream(io.TextIOWrapper):
    """Standard output as a process has it: what cannot be written stays in its buffer."""

    def __init__(self, descriptor: int, buffered: bool):
        raw = os.fdopen(descriptor, "wb", buffering=-1 if buffered else 0)
        super().__init__(raw, encoding="utf-8", write_through=not buffered)


PRINTING = (
    "--help", "methods", "methods --markdown", "info SAVED", "info SAVED --verify",
    "encode lake --model SAVED --out a.npz", "quantize SAVED --out quantized",
)  # fmt: skip


@pytest.mark.parametrize("line", PRINTING)
def test_an_unread_pipe_ends_a_command_quietly(line, tiny_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = [str(tiny_folder) if word == "SAVED" else word for word in line.split()]
    for buffered in (True, False):
        reading, writing = os.pipe()
        os.close(reading)
        monkeypatch.setattr(sys, "stdout", Stream(writing, buffered))
        # When unbuffered, argparse's own help text is lost without an error.
        lost = line == "--help" and not buffered
        overwrite = ["--overwrite"] * (not buffered and words[0] in ("encode", "quantize"))
        assert main(words + overwrite) == (0 if lost else 141)
        sys.stdout.close()
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_what_a_full_stderr_does_not_take_is_lost(monkeypatch, tmp_path, tiny_folder, capsys):
    monkeypatch.setattr(sys, "stderr", Stream(os.open("/dev/full", os.O_WRONLY), True))
    note = ["--negative", "fog", "--guidance", "1"]  # The negative prompt has no effect then.
    words = ["a lake", "--model", str(tiny_folder), "--out", str(tmp_path / "lake.png"), *note]
    assert main(["generate", *words]) == 0
    sys.stderr.close()
    assert (tmp_path / "lake.png").exists() and "wrote" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("buffered", [True, False])
def test_printing_to_a_full_disk_is_a_one_line_error(buffered, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Stream(os.open("/dev/full", os.O_WRONLY), buffered))
    assert main(["methods"]) == 2
    sys.stdout.close()
    said = capsys.readouterr().err
    assert said.startswith("lantern: error: ") and said.count("\n") == 1 and "No space left" in said
