"""What notebooks get without asking, with a stand-in for the kernel."""

import re
import sys
from types import SimpleNamespace

import pytest

import lantern_jax
from lantern_jax.pipeline import notebook
from tests.tiny_checkpoint import tiny_pipeline


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """The texts that a cell shows, one after the other."""
    texts: list[str] = []
    handle = SimpleNamespace(update=texts.append)
    display = SimpleNamespace(HTML=str, display=lambda text, display_id: texts.append(text) or handle)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return texts


def test_a_bar_shows_a_calls_progress_and_disappears(shown):
    made = tiny_pipeline().generate("a lake", num=2, seed=3, compare=True, log_probs=True)
    assert made.plain is not None and made.log_probs is not None
    assert "2 picture(s); a first call also compiles" in shown[0] and shown[-1] == ""
    told = [tuple(map(int, re.findall(r'"(\d+)"', text))) for text in shown[1:-1]]
    assert told == sorted(told) and told[-1] == (2 * made.tokens.size,) * 2
    assert f"{made.tokens.size * 2} of {made.tokens.size * 2} tokens, 0 s left" in shown[-2]


def test_the_callers_own_progress_replaces_the_bar(shown):
    seen = []
    tiny_pipeline().generate("a lake", seed=3, progress=seen.append)
    assert seen and not shown


def test_programs_are_kept_only_in_notebooks(shown, tiny_folder, monkeypatch):
    kept = []
    monkeypatch.setattr(notebook, "keep_compiled_programs", lambda: kept.append(1))
    lantern_jax.load(tiny_folder)
    assert kept == [1]
    for shell in (None, SimpleNamespace()):  # No IPython, or one in a terminal.
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda shell=shell: shell)
        lantern_jax.load(tiny_folder)
        tiny_pipeline().generate("a lake", seed=3)
    assert kept == [1] and not shown
