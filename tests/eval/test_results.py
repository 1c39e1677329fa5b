"""The results page: it matches the JSON lines, is the same each time, and is detected when stale."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eval import results
from lantern_jax.apps.measuring.rows import Row
from tests.refused import refused_each

DOCS = Path(__file__).resolve().parents[2] / "docs"
MACHINE = {"model": "demo", "device": "2 cores", "dtype": "float32", "versions": {"jax": "1.2.3"}}


def quality_row(method, less, outside=(), **more):
    numbers = {"speedup": [1.5, 1.4, 1.6], "tokens_a_pass": [2.0, 1.9, 2.1]}
    numbers["substituted"] = [0.05, 0.04, 0.06]
    numbers |= {"frechet": [3.0 + less, 2.5, 3.5], "frechet_less_plain": [less, less - 0.1, less + 0.1]}
    numbers |= {"distortion": [0.9, 0.8, 1.0], "same_pictures": 0.24, "windows": {"frechet": 0.2}}
    common = {
        "kind": "quality", "pictures": 16, "batch": 8, "seed": 0, "guidance": 4.0, "command": "python -m x",
    }  # fmt: skip
    return MACHINE | common | numbers | {"method": method, "strict": False, "outside": list(outside)} | more


def speed_row(method, speedup, **more):
    row = Row(
        model="demo", pixels=128, dtype="float32", device="2 cores", batch=1, guidance=4.0, method=method,
        options={}, nodes=5, depth=5, passes=90.0, tokens_a_pass=2.75, acceptance=[0.9], ms_a_pass=8.25,
        seconds=0.5, quartiles=[0.4, 0.6], repeats=3, plain_seconds=1.0,
        speedup=speedup, speedup_quartiles=[speedup - 0.1, speedup + 0.1], efficiency=0.5,
        substituted=None, distortion=None, forced=False, versions={"jax": "1.2.3"},
    )  # fmt: skip
    return asdict(replace(row, **more)) | {"command": "lantern bench --quick"}


def write(folder, name, rows):
    path = folder / "results" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_page_matches_the_rows(tmp_path):
    pytest.importorskip("matplotlib")
    write(tmp_path, "pictures", [quality_row("ar", 0.0, strict=True), quality_row("near", 0.5, ["frechet"])])
    write(
        tmp_path,
        "speed",
        [speed_row("led:window=5", 1.5), speed_row("led", 2.5, model="random XL", forced=True)],
    )
    results.main(["--docs", str(tmp_path)])
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    for text in (
        "2 cores, float32, jax 1.2.3", "Fréchet ±0.2", "`led:window=5`", "1.50 [1.40, 1.60]",
    ):  # fmt: skip
        assert text in page, text
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    ar, near, led, forced = rows
    # A strict row has no relaxation to report, and only what is outside its window is marked.
    assert "outside" not in ar and "5.0 %" not in ar and "**" not in ar
    assert "`near` **outside**" in near and "**+0.50 [+0.40, +0.60]**" in near and "5.0 %" in near
    assert "- `near` is outside by Fréchet." in page
    assert "2.50 [2.40, 2.60]" in forced and page.index(results.FORCED) > page.index(led)
    assert "KID less" not in page and "substituted" not in page[page.index("## Speed") :].split("| ---")[0]
    assert "```sh\nlantern bench --quick\n```" in page
    for link in re.findall(r"\]\((results/[^)]*svg)\)", page):
        ElementTree.fromstring((tmp_path / link).read_text(encoding="utf-8"))


def test_a_stale_page_or_picture_is_detected(tmp_path):
    pytest.importorskip("matplotlib")
    path, page = write(tmp_path, "pictures", [quality_row("ar", 0.0)]), ["--docs", str(tmp_path)]
    refused_each({r"results\.md": lambda: results.main([*page, "--check"])})
    assert not (tmp_path / "results.md").exists()
    results.main(page)
    results.main([*page, "--check"])
    write(tmp_path, "pictures", [quality_row("ar", 0.0, speedup=[1.7, 1.6, 1.8])])
    refused_each({r"pictures\.svg": lambda: results.main([*page, "--check"])})
    path.write_text('{"model": "demo"}\n')
    refused_each({r"pictures\.jsonl, line 1 is no row": lambda: results.main(page)})
    path.unlink()
    refused_each({r"holds no \.json or \.jsonl files": lambda: results.main(page)})


def test_the_page_of_the_repository_is_up_to_date():
    assert not (DOCS / "results.md").exists() or results.main(["--docs", str(DOCS), "--check"]) is None
