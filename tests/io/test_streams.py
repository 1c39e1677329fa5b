"""Standard streams that are full, unread or in another encoding: commands work, or say why not in one line."""

import io
import os
import sys
from pathlib import Path

import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.apps.terminal.streams import settle

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")


def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), encoding="ascii"))
    settle()
    print("é", flush=True)
    assert written.getvalue() == b"\\xe9\n"


class Stream(io.TextIOWrapper):
    """Standard output as a process has it: what cannot be written stays in its buffer."""

    def __init__(self, descriptor: int, buffered: bool):
        raw = os.fdopen(descriptor, "wb", buffering=-1 if buffered else 0)
        super().__init__(raw, encoding="utf-8", write_through=not buffered)


PRINTING = (
    "--help", "methods", "info SAVED", "encode lake --model SAVED --out a.npz",
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
        overwrite = ["--overwrite"] * (not buffered and words[0] == "encode")
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
