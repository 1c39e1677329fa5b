"""Command lines that somebody may type, or a script may make by mistake, and what they do in a process of their own.

Every line is one that works with one or two of its words made hostile. The process ends where computing would begin:
the tests look at what is let through, what is refused and how, and what it took to find out.
"""

import contextlib
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lantern_jax.apps.commands.main import main, make_parser
from tests.command import files

SECONDS = 10
# How a refusal by a command or a script begins.
ERROR = re.compile(r"(lantern|(train|eval)\.[\w.]+): error: ")
# What an overlong value of VALUES would look like if it were quoted whole.
QUOTED = re.compile(r"(9|x|é|\\xe9){202}|int_max_str_digits")
# The status of a process that would now compute.
COMPUTES = 77
# More than a float holds, and more than Python reads.
HUGE = ("9" * 400, "9" * 5000)
VALUES = (
    "", " ", "-1", "0", "1.5", "1e39", "1e-46", "-0.0", "nan", "inf", "9" * 30, *HUGE, "1_000", "0x10", "True",
    "None", "[]", "{}", "[[0]]", "1,2,3", ",", "=", "a=1", "\x1b]0;owned\x07\x1b[2J", "two\nlines", "\udcff",
    "é" * 300, "x" * 5000, "~", "/", ".", "..", "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem",
    "missing", "nowhere/new", "folder", "folder/", "loop", "loop/new", "pipe", "text.txt", "empty.json",
    "deep.json", "old.png", "old.npz", "tiny", "tiny/config.json", "tiny/arrays", "link", "auto", "off",
    "local", "i/N", "1/0", "2/1", "99999999/100000000", "data=0", "data=2,model=3", "http://localhost", "--out",
    "ar", "auto:k=1", "led:nodes", "led:nodes=9,nodes=8", "gumbel:tree=deep.json", "jacobi:window=1|2|3|4",
)  # fmt: skip
# Lines that work, by command; what they read is made by ``clutter``.
LINES = {
    "generate": "generate lake --model tiny --out new.png --num 1 --seed 0 --stats new.json",
    "generate encoded": "generate --prompts old.npz --model tiny --out new/ --first 3",
    "generate start": "generate lake --model tiny --start old.png --keep 0.5 --race new.webp",
    "encode": "encode lake --model tiny --out new.npz",
    "set": "set --prompts text.txt --model tiny --out new --num 2 --shard-size 4 --worker 1/1",
    "tune": "tune lake --model tiny --minutes 0.1 --pictures 2 --out new.json",
    "bench": "bench --model tiny --methods gumbel --batch 1 --pictures 1 --out new.jsonl",
    "bench random": "bench --size tiny --random --accept-lengths 3.63 --methods gumbel:tree=chain --passes 2",
    "metrics": "metrics folder --reference folder --out new.json",
    "info": "info tiny",
    "convert": "convert llamagen old.npz --out new",
    "quantize": "quantize tiny --out new",
    "serve": "serve --model tiny --port 0 --batch 2 --queue 4",
    "methods": "methods",
}


class Outcome(NamedTuple):
    """What a process did: its status (None: it hung), its stderr, seconds, peak memory in MB, the files it left, and
    its stdout.
    """

    status: int | None
    said: str
    seconds: float
    megabytes: float
    left: tuple[str, ...]
    printed: str = ""

    @property
    def fault(self) -> str:
        """What is wrong with it; empty where nothing is."""
        if self.status is None:
            return "hang"
        if "Traceback" in self.said:
            return "traceback"
        if self.status not in (0, 2, COMPUTES):
            return f"status {self.status}"
        if self.status == 2 and self.left:
            return "files left"
        lines = self.said.splitlines()
        if self.status == 2 and (len(lines) != 1 or not ERROR.match(lines[0])):
            return "not one line"
        if QUOTED.search(self.said):
            return "a long value quoted whole"
        shown = self.said + self.printed
        if any(not letter.isprintable() and letter != "\n" for letter in shown) or len(self.said) > 5000:
            return "unprintable or endless"
        return ""


def clutter(folder: Path) -> None:
    """Fills a folder with what the lines name; uses a device."""
    from PIL import Image

    from lantern_jax.checkpoints.store import save
    from lantern_jax.text.encoded import save_encoded
    from tests.tiny_checkpoint import tiny_pipeline

    pipeline = tiny_pipeline()
    save(folder / "tiny", pipeline.checkpoint)
    (folder / "folder").mkdir()
    (folder / "text.txt").write_text("a lake\n\na foggy forest\n")
    (folder / "empty.json").touch()
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "link").symlink_to(folder)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    Image.new("RGB", (16, 16)).save(folder / "old.png")
    encoded = pipeline.encode(["a lake"])
    save_encoded(folder / "old.npz", encoded.kind, encoded.prompts, encoded.arrays)


def command_lines(seed: int) -> Iterator[list[str]]:
    """Yields lines without end."""
    chance = random.Random(seed)
    flags = {name: _flags(line.split()[0]) for name, line in LINES.items()}
    while True:
        name = chance.choice(list(LINES))
        words = LINES[name].split()
        for _ in range(chance.choice((1, 1, 2))):
            hostile = chance.choice(VALUES)
            what = chance.random()
            if what < 0.45 and flags[name]:
                words += [chance.choice(flags[name]), hostile]
            elif what < 0.9 and len(words) > 1:
                words[chance.randrange(1, len(words))] = hostile
            else:
                words.insert(chance.randrange(1, len(words) + 1), hostile)
        # No argument of a program can hold a zero byte.
        yield words


def _flags(command: str) -> list[str]:
    parsers = next(action for action in make_parser()._actions if action.choices)
    flags = (flag for action in parsers.choices[command]._actions for flag in action.option_strings)
    return [flag for flag in flags if flag.startswith("--") and flag != "--help"]


def run(work: Callable[[], int], folder: Path, seconds: float = SECONDS) -> Outcome:
    """Calls ``work`` in a forked process, in a folder. This process must not have used a device yet."""
    before = files(folder)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        began = time.monotonic()
        process = os.fork()
        if not process:
            _work(work, folder, out, said)
        status, used = _waited(process, began + seconds)
        took = time.monotonic() - began
        texts = []
        for file in (said, out):
            file.seek(0)
            texts.append(file.read(100_000).decode(errors="backslashreplace"))
    left = tuple(sorted(files(folder) - before))
    return Outcome(status, texts[0], took, used.ru_maxrss / 1024, left, texts[1])


def _work(work: Callable[[], int], folder: Path, out, said) -> None:
    status = 70
    try:
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0), os.dup2(out.fileno(), 1), os.dup2(said.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def _waited(process: int, end: float) -> tuple[int | None, resource.struct_rusage]:
    while time.monotonic() < end:
        done, status, used = os.wait4(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), used
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return None, os.wait4(process, 0)[2]


def command(line: list[str]) -> Callable[[], int]:
    """Returns work that runs the ``lantern`` command with a line, up to where it would compute."""

    def work() -> int:
        from lantern_jax.apps.terminal import terminal
        from lantern_jax.devices import kept
        from lantern_jax.engine import compiler

        def computes(*arguments, **options):
            os._exit(COMPUTES)

        # A program is found compiled, or compiled. What slow work is about is no part of a refusal.
        kept.load_program = compiler.compile_ahead = computes
        terminal.FIRST = 3600.0
        return main(line)

    return work
