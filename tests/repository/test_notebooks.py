"""The notebooks as they are stored, and executed: quickly with ``-m slow``, as a reader does with ``-m notebooks``.

Execution needs the extra ``notebooks``.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.quick_compilation import QUICK_COMPILATION
from tests.repository.notebook_runs import NOTEBOOKS, execute, texts

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
SPEEDUP = re.compile(r"^\d+\.\d\d times as fast as plain decoding$", re.MULTILINE)


@cache
def kept(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def outputs(notebook: dict) -> Iterator[dict]:
    for cell in notebook["cells"]:
        yield from cell.get("outputs", ())


def has_picture(notebook: dict) -> bool:
    return any("image/png" in output.get("data", ()) for output in outputs(notebook))


@each
def test_a_notebook_is_whole(path):
    """Version 4.5, cells with ids, no editor's metadata; small enough to be shown, beginning with its title."""
    notebook = kept(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    assert path.stat().st_size < 1_500_000
    assert "".join(notebook["cells"][0]["source"]).startswith("# ")
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in ids)
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"markdown", "code"}
    assert not any(cell["metadata"] for cell in notebook["cells"])


@each
def test_code_compiles_and_pins_no_jax(path):
    for cell in (cell for cell in kept(path)["cells"] if cell["cell_type"] == "code"):
        source = "".join(cell["source"])
        magic = re.findall(r"^ *%.*$", source, re.MULTILINE)
        assert not magic or cell["id"] == "install", "installing is for Colab alone"
        assert not any(re.search(r"(?<![\w-])jax(lib)?\b|==", line) for line in magic)
        compile(re.sub(r"^( *)%.*$", r"\1pass", source, flags=re.MULTILINE), path.name, "exec")


@each
def test_outputs_are_kept_without_traces_of_a_machine(path):
    notebook = kept(path)
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run python tests/repository/notebook_runs.py"
    for output in outputs(notebook):
        assert output["output_type"] != "error" and output.get("name") != "stderr"
    # Base64 in quotes is a picture.
    text = re.sub(r"base64,[\w+/=]+|\"image/png\": \"[^\"]*\"", "", json.dumps(list(outputs(notebook))))
    assert not re.search(r"/(work|home|root|tmp|usr|Users|content|opt)/|[A-Z]:\\\\|site-packages", text)
    assert has_picture(notebook)
    if path.stem == "first_pictures":
        assert SPEEDUP.search(texts(notebook)) and "data:image/webp;base64," in json.dumps(notebook)


def run(path: Path, folder: Path, **environment: str) -> dict:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, exc_type=ImportError)
    return execute(path, folder, **environment)


# The readers' first one. Pages with examples of others are executed in test_pages.py and pipeline/test_own_objects.py,
# and all notebooks below as a reader has them.
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=() if path.stem == "first_pictures" else pytest.mark.exhaustive, id=path.stem
        )
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    """Every cell as it stands, compiled as tests compile; less is trained."""
    quick = {"XLA_FLAGS": " ".join(QUICK_COMPILATION), "LANTERN_STEPS": "10", "LANTERN_PICTURES": "8"}
    compiled = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
    assert_whole(path, run(path, tmp_path, **compiled, **quick))


@pytest.mark.notebooks
@each
def test_it_runs_as_a_reader_has_it(path, tmp_path):
    start = time.monotonic()
    assert_whole(path, run(path, tmp_path))
    seconds = time.monotonic() - start
    assert path.stem != "first_pictures" or seconds < 120, f"{seconds:.0f} s with nothing compiled"


def assert_whole(path: Path, notebook: dict):
    assert has_picture(notebook)
    if path.stem == "published_checkpoint":
        assert texts(notebook).startswith("The demo stands in: ")
    if path.stem == "first_pictures":
        assert SPEEDUP.search(texts(notebook))
