"""Commands given files whose texts steer a terminal; ``tests.hostile.fuzz`` has more of them."""

from functools import cache

import pytest

import lantern_jax.apps.commands.main
import lantern_jax.engine.compiler
import lantern_jax.engine.layouts
from lantern_jax.apps.commands.main import main, make_parser
from tests.hostile import texts as hostile_texts
from tests.hostile.commands import COMPUTES, clutter


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Returns a folder with what the lines name; none of them changes its contents."""
    folder = tmp_path_factory.mktemp("inputs")
    clutter(folder)
    return folder


# Making the parser of all commands takes longer than a refusal.
same_parser = cache(make_parser)


@pytest.fixture(autouse=True)
def nothing_is_computed(place, monkeypatch):
    def computes(*arguments, **options):
        raise SystemExit(COMPUTES)

    monkeypatch.chdir(place)
    monkeypatch.setattr(lantern_jax.apps.commands.main, "make_parser", same_parser)
    # Tracing the state, which comes just before compiling, takes longer than all the rest.
    monkeypatch.setattr(lantern_jax.engine.layouts, "state_shapes", computes)
    monkeypatch.setattr(lantern_jax.engine.compiler, "compile_ahead", computes)


def run(words: list[str], capsys, deadline) -> tuple[int, str]:
    """Returns the status, and what is wrong with what was printed."""
    deadline(10)
    status = main(words)
    printed = capsys.readouterr()
    shown = (printed.out + printed.err).split("\n")
    wrong = [line for line in shown if not line.isprintable()]
    if status == 2 and (printed.err.count("\n") != 1 or not printed.err.startswith("lantern: error: ")):
        wrong.append(printed.err)
    return status, repr(wrong[:1]) if wrong or len(printed.err) > 5000 else ""


@pytest.mark.parametrize("kind", ["escapes", "markup"])
def test_no_text_of_a_file_steers_the_terminal(kind, place, capsys, monkeypatch, deadline):
    monkeypatch.setattr(hostile_texts, "STEERING", {kind: hostile_texts.STEERING[kind]})
    said = 0
    for number, (name, words) in enumerate(hostile_texts.lines(place)):
        # The others in turn, by the kind of text.
        if number % 3 != len(kind) % 3 and not any(part in name for part in ("key.model", "name of")):
            continue
        status, wrong = run(words, capsys, deadline)
        assert status in (0, 2, COMPUTES) and not wrong, (name, words, status, wrong)
        said += 1
        for left in place.glob("new*"):
            left.unlink()
    assert said > 30
