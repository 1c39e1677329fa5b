"""The gallery: its page shows every method, and its tables match the runs that made the pictures."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eval import gallery
from lantern_jax.apps.display import race
from lantern_jax.decoding.methods import AUTO, METHODS
from tests.tiny_checkpoint import PROMPTS, SIDE, TOKENS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "# Gallery\n" + "".join(
    f"\n<!-- {name} -->\n" for name in ("same", "draws", "relaxed", "maps", "races")
)
FEW = ("ar", "jacobi", "sjd", "lantern-g", "zipar")


def table(page: str, name: str) -> str:
    return re.search(rf"<!-- {name} -->\n((?:\|.*\n)+)", page)[1]


def methods_of(text: str) -> list[str]:
    return re.findall(r"\*\*`(.+?)`\*\*", text)


def test_the_page_shows_every_method_once():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = [name for kind in ("same", "draws", "relaxed") for name in methods_of(table(page, kind))]
    assert sorted([*shown, AUTO]) == sorted(METHODS) and f"`{AUTO}`" in page
    assert methods_of(table(page, "races")) == list(gallery.RACES)
    assert f'"{gallery.PROMPT}"' in page and f"stopped after {gallery.PASSES}." in page
    there = {path.name for path in (DOCS / gallery.FOLDER).iterdir()}
    assert there == set(re.findall(rf"{gallery.FOLDER.as_posix()}/([^)]+)\)", page)), (
        "no picture is left over"
    )


@pytest.fixture
def made(tiny_demo, tmp_path, monkeypatch):
    """Returns a folder in which the script has made a page of a few methods of the tiny model."""
    few = {name: METHODS[name] for name in FEW}
    monkeypatch.setattr(gallery, "METHODS", few)
    monkeypatch.setattr(gallery, "MAPS", ("jacobi",))
    monkeypatch.setattr(gallery, "RACES", ("jacobi",))
    monkeypatch.setattr(gallery, "PASSES", 3)
    # One picture has the same program as more, and a race of one second has few frames.
    monkeypatch.setattr(gallery, "LANDSCAPES", PROMPTS[:1])
    monkeypatch.setattr(race, "LONGEST_SECONDS", 1)
    (tmp_path / "gallery.md").write_text(PAGE)
    gallery.main(["--docs", str(tmp_path)])
    return tmp_path


@pytest.mark.slow
def test_the_page_matches_the_runs(made, tiny_demo):
    page = (made / "gallery.md").read_text(encoding="utf-8")
    same, draws, relaxed = (table(page, name) for name in ("same", "draws", "relaxed"))
    assert [methods_of(text) for text in (same, draws)] == [["ar", "jacobi"], ["sjd"]]
    assert methods_of(relaxed) == ["lantern-g", "zipar"]
    run = tiny_demo.generate(gallery.PROMPT, seed=gallery.SEED, method="lantern-g").statistics
    share = f"{100 * run.substituted:.1f} % stand in"
    assert f"**`lantern-g`**<br>{run.step_compression:.2f} tokens per pass<br>{share}" in relaxed
    assert "stand in" not in same + draws and relaxed.count("not lossless") == 1
    assert f"**`ar`**<br>1.00 tokens per pass<br>4 of {TOKENS} tokens" in same
    with Image.open(made / gallery.FOLDER / "jacobi-race.webp") as moving:
        assert moving.n_frames > 3
    assert gallery.filled(page, "draws", draws.removesuffix("\n")) == page


def test_what_is_not_painted_yet_is_dark(tiny_demo):
    generation = tiny_demo.generate(gallery.PROMPT, seed=gallery.SEED, method="ar", compare=True)
    run = gallery.Run("ar", tiny_demo.check(gallery.PROMPT, method="ar"), generation)
    known, picture = run.painted(2)
    cell = SIDE // 4
    assert known == 3 and picture.shape == (SIDE, SIDE, 3)
    assert np.array_equal(picture[:cell, : 3 * cell], generation.pictures[0][:cell, : 3 * cell])
    assert (picture[:cell, 3 * cell :] == gallery._UNKNOWN).all() and (
        picture[cell:] == gallery._UNKNOWN
    ).all()
    whole = Image.open(io.BytesIO(gallery._webp(generation.pictures[0])))
    assert whole.width == SIDE * round(gallery.SIDE / SIDE)
