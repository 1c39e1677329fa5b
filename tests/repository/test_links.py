"""Links of all pages to files and headings of the repository lead somewhere; other sites are not asked."""

import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import lantern_jax
from lantern_jax import couplings, draftings, rules
from tests.repository.public import listed

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "lantern_jax/assets", "examples")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")),
    *sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")),
]
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """Returns a page without its code; of a notebook, its texts."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def slugs(text: str) -> set[str]:
    """Returns the anchors that GitHub and the site give to the headings of a page."""
    seen: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


def is_broken(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    there = target.is_file() and target.is_relative_to(ROOT)
    return not there or (bool(anchor) and anchor not in slugs(FENCE.sub("", target.read_text("utf-8"))))


def test_links_lead_somewhere():
    links = [(page, link) for page in PAGES for link in LINK.findall(prose(page))]
    assert len(links) > 100
    assert not [f"{page.relative_to(ROOT)}: {link}" for page, link in links if is_broken(page, link)]


def test_the_api_pages_have_every_public_name_once():
    public = listed()
    assert Counter(public).most_common(1)[0][1] == 1
    for home in (lantern_jax, couplings, draftings, rules):
        there = {name for module, name in public if module == home.__name__}
        assert there == {name for name in home.__all__ if not isinstance(getattr(home, name), ModuleType)}


def test_every_page_is_in_the_sites_contents():
    docs, listed = ROOT / "docs", {ROOT / "docs" / "index.md"}
    for page in (docs / "index.md", docs / "api" / "index.md"):
        trees = re.findall(r"^```{toctree}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
        names = [re.sub(r".*<(.+)>", r"\1", line) for line in lines]
        found = [page.parent / name for name in names]
        listed |= {
            next(filter(Path.exists, (name.with_suffix(".ipynb"), name.with_suffix(".md")))) for name in found
        }
    assert listed == {*docs.rglob("*.md"), *docs.rglob("*.ipynb")}
