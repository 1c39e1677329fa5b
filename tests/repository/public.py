"""The public names: those that the API pages list, each under the module that it is imported from."""

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "api"
_ENTRY = re.compile(r"^\.\. (currentmodule|autoclass|autofunction|py:data):: ([\w.]+)$", re.MULTILINE)


def listed() -> list[tuple[str, str]]:
    """Returns (module, name) of every entry; one with a path of its own is not imported from where it is listed."""
    found = []
    for page in sorted(PAGES.glob("*.md")):
        module = ""
        for kind, name in _ENTRY.findall(page.read_text("utf-8")):
            if kind == "currentmodule":
                module = name
            elif "." not in name:
                found.append((module, name))
    return found
