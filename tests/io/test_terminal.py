"""What reaches a terminal: texts of files are shown and do nothing."""

import ast
import io

from rich.table import Table

from lantern_jax.io.console import Console
from lantern_jax.io.terminal import say
from tests.repository.test_structure import modules

STEERING = "\x1b]0;owned\x07\x1b[2J\r\nlantern: all is well\u202e\x9b"


def test_a_console_shows_texts_as_they_are():
    out = io.StringIO()
    console = Console(file=out, width=500)
    table = Table(STEERING, title=STEERING, caption=STEERING)
    # What rich would take for markup, and for a picture.
    table.add_row(STEERING), table.add_row("[/x] [bold] :smile:")
    console.print(table), console.print(STEERING), console.print("[/x] [bold] :smile:")
    shown = out.getvalue()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("lantern: all is well") == 5 and shown.count("[/x] [bold] :smile:") == 2


def test_a_line_is_one(capsys):
    say(STEERING), say(STEERING, error=True)
    for said in capsys.readouterr():
        assert said.count("\n") == 1 and said[:-1].isprintable()


# The table of methods is the package's own; the line of an error is escaped where it is made.
PRINTING = ("io.console", "io.terminal", "commands.methods", "commands.command_line")


def test_all_is_printed_by_them():
    nodes = [(name.partition(".")[2], node) for name in modules() for node in ast.walk(modules()[name])
             if name.startswith("lantern_jax")]  # fmt: skip
    consoles = {name for name, node in nodes if getattr(node, "module", "") == "rich.console"}
    prints = {
        name for name, node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    }
    assert consoles <= set(PRINTING[:2]) and prints <= set(PRINTING)
