"""Executes the notebooks of docs/notebooks on the CPU, as a reader would who has nothing compiled.

    python tests/repository/notebook_runs.py NAME...

executes those notebooks and keeps their outputs; with no name, all.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, folder: Path, **environment: str) -> Any:
    """Returns the notebook with the outputs of a run in `folder`, with these variables of its own; raises
    CellExecutionError if a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    # The tests' own JAX is stricter and compiles less well, and what is cached or tuned here must not show.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    paths = {"XDG_CACHE_HOME": "cache", "IPYTHONDIR": "ipython", "HF_HOME": "hub", "TMPDIR": "temporary"}
    for name in paths.values():
        (folder / name).mkdir()
    own = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment}
    places = {name: str(folder / place) for name, place in paths.items()}
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", record_timing=False, coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    return client.execute(env={**kept, **places, **own})


def texts(notebook: Mapping[str, Any]) -> str:
    """Returns what the code cells print."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return "".join("".join(output.get("text", ())) for output in outputs)


def write(path: Path, notebook: Any) -> None:
    """Writes a notebook with its outputs, and nothing of the machine it ran on."""
    import nbformat

    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            # Pillow's images show themselves in two formats.
            if "image/png" in output.get("data", ()):
                output.data.pop("image/jpeg", None)
    # Lines of their own, as Jupyter writes them.
    content = json.loads(nbformat.writes(notebook, version=4))
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


def main() -> None:
    for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or NOTEBOOKS:
        start, before = time.monotonic(), os.times()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        write(path, notebook)
        after = os.times()
        work = after.children_user + after.children_system - before.children_user - before.children_system
        print(f"{path.name}: {time.monotonic() - start:.0f} s, {work:.0f} s of processors", flush=True)


if __name__ == "__main__":
    main()
