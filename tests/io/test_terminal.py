"""What reaches a terminal: text from files is shown and cannot steer it."""

import ast
import io
import re
import time

import pytest
from rich.table import Table

from lantern_jax.apps.terminal import terminal
from lantern_jax.apps.terminal.console import Console
from lantern_jax.apps.terminal.terminal import say
from tests.repository.test_structure import modules

STEERING = "\x1b]0;owned\x07\x1b[2J\r\nlantern: all is well\u202e\x9b"


def test_a_console_shows_text_as_it_is():
    out = io.StringIO()
    console = Console(file=out, width=500)
    table = Table(STEERING, title=STEERING, caption=STEERING)
    # What rich would take for markup and for an emoji.
    table.add_row(STEERING), table.add_row("[/x] [bold] :smile:")
    console.print(table), console.print(STEERING), console.print("[/x] [bold] :smile:")
    shown = out.getvalue()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("lantern: all is well") == 5 and shown.count("[/x] [bold] :smile:") == 2


def test_a_line_stays_one_line(capsys):
    say(STEERING), say(STEERING, error=True)
    for said in capsys.readouterr():
        assert said.count("\n") == 1 and said[:-1].isprintable()


# The table of methods is the package's own; error lines are escaped where they are made.
PRINTING = (
    "apps.terminal.console",
    "apps.terminal.terminal",
    "apps.commands.methods",
    "apps.commands.command_line",
)


def test_no_other_module_prints():
    nodes = [(name.partition(".")[2], node) for name in modules() for node in ast.walk(modules()[name])
             if name.startswith("lantern_jax")]  # fmt: skip
    consoles = {name for name, node in nodes if getattr(node, "module", "") == "rich.console"}
    prints = {
        name for name, node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    }
    assert consoles <= set(PRINTING[:2]) and prints <= set(PRINTING)


class Screen(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.fixture
def quick(monkeypatch):
    for name, seconds in {"FIRST": 0.01, "EVERY": 0.05, "_LOOK": 0.01}.items():
        monkeypatch.setattr(terminal, name, seconds)


def wait_for(screen, pattern):
    for _ in range(500):
        if re.search(pattern, screen.getvalue()):
            return
        time.sleep(0.01)
    raise AssertionError(f"{pattern!r} is not in {screen.getvalue()!r}")


def test_progress_through_a_pipe_is_written_in_lines(monkeypatch, quick):
    screen = Screen(is_terminal=False)
    monkeypatch.setattr("sys.stderr", screen)
    with terminal.telling("loading") as tell:
        wait_for(screen, r"(lantern: loading \(\d+ s\)\n){2}")
        with terminal.telling(lambda: f"decoding {STEERING}"):
            wait_for(screen, "lantern: decoding")
        tell("reading")
        wait_for(screen, r"lantern: reading \(\d+ s\)\n")
    lines = screen.getvalue().splitlines()
    assert all(line.isprintable() and line.startswith("lantern: ") for line in lines)
    time.sleep(0.1)
    assert screen.getvalue().splitlines() == lines, "a line after the end"


def test_on_a_terminal_the_progress_line_is_erased_before_something_is_printed(monkeypatch, quick):
    screen = Screen(is_terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with terminal.telling("loading"):
        wait_for(screen, r"\r\x1b\[2Kloading \(\d+ s\)")
        say("a note", error=True)
        assert "\r\x1b[2Ka note\n" in screen.getvalue()
        wait_for(screen, r"a note\n\r\x1b\[2Kloading")
        Console(file=screen, width=80).print("a table")
        assert "\r\x1b[2Ka table\n" in screen.getvalue()
    assert screen.getvalue().endswith(("\r\x1b[2K", "a table\n"))


def test_quick_work_shows_no_progress(monkeypatch):
    screen = Screen(is_terminal=False)
    monkeypatch.setattr("sys.stderr", screen)
    with terminal.telling("loading"), terminal.telling(None):
        pass
    assert screen.getvalue() == ""
