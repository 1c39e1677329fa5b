"""Where a script's numbers go: standard output and a file."""

import json
from pathlib import Path
from typing import Any

from lantern_jax.io.files import write_file


def to_json(numbers: Any) -> str:
    """Returns the text of a JSON file, indented, for people."""
    return json.dumps(numbers, indent=1) + "\n"


def report(numbers: Any, out: Path | None) -> None:
    """Prints numbers as JSON, and writes the same to ``out`` unless that is None."""
    print(to_json(numbers), end="")
    if out is not None:
        write_file(out, to_json(numbers))
