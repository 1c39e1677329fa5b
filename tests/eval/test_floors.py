"""Model costs by data sheets: the page has the program's table, and its numbers match a count by hand."""

from pathlib import Path

import numpy as np
import pytest

from eval import floors
from lantern_jax.apps.measuring.random_models import published_sizes
from tests.cases import exhaustive

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
FEW = ("janus-pro-1b", "lumina2-7b-int8")


@pytest.mark.slow
@pytest.mark.parametrize("models", [FEW, exhaustive(floors.MODELS)])
def test_the_page_has_the_table(models):
    _, after = PAGE.read_text("utf-8").split("<!-- table: floors -->\n")
    head, line, *rows = after.split("\n\n")[0].splitlines()
    names = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert tuple(dict.fromkeys(names)) == floors.MODELS
    wanted = [row for name, row in zip(names, rows, strict=True) if name in models]
    assert [head, line, *wanted] == floors.table(models).splitlines()


@pytest.mark.parametrize(("name", "read", "cached"), [
    # The layers' q, k, v, o, gate, up and down, and the head, without the embedding table; keys of 8 or 16 heads.
    ("emu3-8b", 32 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336) + 32768 * 4096, 1024),
    ("liquid-7b", 28 * (3072 * 4096 * 4 + 3 * 3072 * 24576) + 8192 * 3072, 4096),
])  # fmt: skip
def test_a_pass_reads_layers_head_and_grouped_keys(name, read, cached):
    config = published_sizes()[name]()
    cache = floors.cache_of(config)
    assert cache == 2 * 2 * config.num_layers * cached * config.num_tokens * 2
    ((*_, plain, _, _, _, _),) = floors.rows_of(name, ["h100"])
    free = np.sum(floors.size_shapes(name, floors.BFLOAT16).recipe.target().forced < 0)
    assert float(plain) == pytest.approx(
        free * (2 * read + cache / 2) / floors.SHEETS["h100"].bandwidth, abs=0.051
    )


def test_a_device_without_room_for_a_picture_has_no_row():
    made = floors.rows_of("liquid-7b", ("v5e", "h100"))
    assert [row[1] for row in made] == ["h100"]
    seconds = np.array([float(made[0][3]), float(made[0][-1])])
    assert (seconds > 0).all() and seconds[1] < seconds[0]
