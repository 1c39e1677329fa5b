"""What reaches a terminal: texts of files are shown and do nothing."""

import ast
import io

import pytest
from rich.table import Table

import lantern_jax.pipeline.pipeline
from lantern_jax.checkpoints.store import save
from lantern_jax.commands.main import main
from lantern_jax.io.console import Console
from lantern_jax.io.terminal import say
from tests.repository.test_structure import modules
from tests.tiny_checkpoint import altered_pipeline

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


@pytest.mark.parametrize(
    "line", ["info {}", "info {} --verify", "generate lake --model {} --out new.png --tree none"]
)
def test_commands_show_names_and_contents_as_they_are(line, tmp_path, monkeypatch, capsys):
    """Of a checkpoint that says anything, in a folder of any name."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / STEERING.replace("[", "")
    altered = altered_pipeline(model=STEERING, metadata={STEERING: [STEERING], "[/x]": "[/x]"}).checkpoint
    save(folder, altered)
    monkeypatch.setattr(
        lantern_jax.pipeline.pipeline, "load", lambda *_, **__: altered_pipeline(model=STEERING)
    )
    assert main([word.format(folder) for word in line.split()]) == 0
    for said in capsys.readouterr():
        assert all(shown.isprintable() for shown in said.split("\n"))
