"""The site builds without a warning and its links lead somewhere: run with ``-m site``, with the extra ``docs``."""

import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.site


class Page(HTMLParser):
    """What a page links to and what can be linked to in it."""

    def __init__(self, file: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("sphinx_book_theme")
    pytest.importorskip("myst_nb")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "doctrees"]
    result = subprocess.run([*command, ROOT / "docs", folder / "html"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder / "html"


def test_pages_have_what_they_are_for(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "race.webp" in text and "logo.svg" in text
    assert {"lantern_jax.load", "lantern_jax.Pipeline.generate"} <= Page(
        site / "api" / "generate.html"
    ).anchors


def test_links_within_the_site_lead_somewhere(site):
    page = cache(Page)
    for file in (*site.glob("*.html"), *site.glob("[!_]*/*.html")):
        for link in page(file).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.exists(), f"{file.name}: {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in page(target).anchors, f"{file.name}: {link}"
