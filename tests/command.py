"""Helpers that tests of the ``lantern`` command share."""

from pathlib import Path

from lantern_jax.apps.commands.main import main


def files(folder: Path) -> set[str]:
    """Returns everything in a folder, by its path there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_refused(arguments: list[str], capsys) -> str:
    """Expects exit status 2, one line on stderr, nothing on stdout, no file more or less; returns the line."""
    before = files(Path())
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("lantern: error: ")
    assert printed.err.count("\n") == 1
    assert files(Path()) == before
    return printed.err


def must_not_run(*arguments, **options):
    raise AssertionError("computed before the input was checked")
