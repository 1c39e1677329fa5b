"""Links of all pages to files and headings here lead somewhere; those to elsewhere are not followed."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import lantern_jax

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "lantern_jax/assets", "examples")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")),
    *sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")),
]
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


@cache
def prose(page: Path) -> str:
    """The page without its code; of a notebook its texts."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def slugs(text: str) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    seen: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


def broken(page: Path, text: str) -> list[str]:
    """Its links that lead nowhere."""
    found = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.is_file() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in slugs(FENCE.sub("", target.read_text("utf-8")))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not broken(page, prose(page))


def test_broken_links_are_found():
    text = "[a](scale.md#no-such-heading) [b](nothing.md) ![c](method.svg) [d](scale.md#over-several-hosts)"
    assert broken(ROOT / "docs" / "page.md", text) == ["scale.md#no-such-heading", "nothing.md"]
    assert slugs("# What `k` costs\n## A\n## A\n") == {"what-k-costs", "a", "a-1"}


def api_names() -> list[str]:
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    text = "".join(page.read_text("utf-8") for page in pages)
    return re.findall(r"^\.\. auto(?:class|function):: (\w+)$", text, re.MULTILINE)


def test_the_api_pages_have_every_public_name_once():
    assert Counter(api_names()) == Counter(lantern_jax.__all__)


def test_every_page_is_in_the_sites_contents():
    docs, listed = ROOT / "docs", {ROOT / "docs" / "index.md"}
    for page in (docs / "index.md", docs / "api" / "index.md"):
        for block in re.findall(
            r"^```{toctree}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        ):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {_page(page.parent / name) for name in names}
    assert listed == {*docs.rglob("*.md"), *docs.rglob("*.ipynb")}


def _page(name: Path) -> Path:
    notebook = name.with_suffix(".ipynb")
    return notebook if notebook.exists() else name.with_suffix(".md")
