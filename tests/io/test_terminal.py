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
    assert all(line.isprintable() for line in out.getvalue().split("\n"))
    assert (
        out.getvalue().count("lantern: all is well") == 5 and out.getvalue().count("[/x] [bold] :smile:") == 2
    )


def test_a_line_is_one(capsys):
    say(STEERING), say(STEERING, error=True)
    for said in capsys.readouterr():
        assert said.count("\n") == 1 and said[:-1].isprintable()


def test_all_is_printed_by_them():
    for name, tree in modules().items():
        if not name.startswith("lantern_jax") or name in (
            "lantern_jax.io.console",
            "lantern_jax.io.terminal",
        ):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "rich.console", name
            # The table of methods is the package's own; the line of an error is escaped where it is made.
            elif name not in ("lantern_jax.commands.methods", "lantern_jax.commands.command_line"):
                assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), name
