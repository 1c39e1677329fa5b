"""Wrong inputs for training and evaluation scripts: one line, status 2, before any work, nothing left behind."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lantern_jax.apps.commands.command_line import run
from tests.hostile.scripts import WRONG, is_quick, litter

ROOT = Path(__file__).parents[2]
# What an overlong value would look like if it were quoted whole.
QUOTED = re.compile(r"a{202}")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Returns the current folder, filled with things that scripts cannot use."""
    monkeypatch.chdir(tmp_path)
    litter()
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """Returns all files, except what Python caches of a config that it read."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("script", WRONG)
def test_a_wrong_input_is_refused_in_one_line_and_leaves_nothing(script, place, capfd):
    assert_refused(script, filter(is_quick, WRONG[script]), place, capfd)


@pytest.mark.exhaustive  # Reads the demo over and over.
@pytest.mark.parametrize("script", WRONG)
def test_so_is_one_that_is_found_after_reading_the_demo(script, place, capfd):
    assert_refused(script, (words for words in WRONG[script] if not is_quick(words)), place, capfd)


def assert_refused(script, lines, place, capfd):
    before, main = contents(place), importlib.import_module(script).main
    for words in lines:
        status, printed = run(script, lambda words=words: main(words)), capfd.readouterr()
        assert status == 2, (script, words, printed)
        assert printed.err.startswith(f"{script}: error: ") and printed.err.count("\n") == 1, (words, printed)
        assert printed.out == "" and not QUOTED.search(printed.err), (words, printed)
        assert contents(place) == before, words


def test_training_without_its_extra_is_refused_in_one_line(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ml_collections'] = None")
    places = os.pathsep.join((str(tmp_path), str(ROOT)))
    result = subprocess.run(
        [sys.executable, "-m", "train.target", "--help"], env=os.environ | {"PYTHONPATH": places},
        capture_output=True, text=True,
    )  # fmt: skip
    wanted = 'train.target: error: training needs ml_collections: pip install -e ".[train]" in a clone\n'
    assert (result.returncode, result.stdout, result.stderr) == (2, "", wanted)


def test_every_script_has_cases():
    files = [file for package in ("train", "eval") for file in (ROOT / package).rglob("*.py")]
    run_as_one = {file for file in files if "run_script(main)" in file.read_text()}
    assert set(WRONG) >= {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in run_as_one}
