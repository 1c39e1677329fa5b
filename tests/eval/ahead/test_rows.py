"""Rows in files and tables, what changed between two files, and the search for the largest batch."""

from dataclasses import replace

import pytest
from rich.console import Console

from eval.ahead import rows, tables
from lantern_jax.io.errors import LanternError

ROW = rows.AheadRow(
    "v5e", None, "tiny", "ar", 1, "advance", 2**30, 2**20, 0, 0, 0, 3 * 2**20, 2_500_000, None, 1_000_000, None,
    {"score qkv": 2_000_000, "draft": 500_000}, {"all-reduce": {"count": 2, "bytes": 2**20}}, 1, 12.0,
)  # fmt: skip
GPU_ROW = replace(
    ROW, device="h100:8", mesh="data=8,model=1", cycles_per_round=None, kernels_per_round=352,
    parts={"score qkv": 352}, collectives={}, inner_loops=0,
)  # fmt: skip
REFUSED = replace(ROW, method="led", cycles_per_round=None, parts={}, error="does not fit: 22.14 GiB")


def shown(table) -> str:
    console = Console(width=250)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_tables_show_what_the_rows_hold():
    text = shown(tables.ahead_table([ROW, GPU_ROW, REFUSED]))
    for part in (
        "2.50 L",
        "352",
        "2 all-reduce 1 MiB",
        "22.14 GiB",
        "15.75 GiB",
        "h100:8",
        "data=8,model=1",
    ):
        assert part in text
    assert "score qkv 2.00, draft 0.50" in shown(tables.parts_of_rounds([ROW, REFUSED]))
    assert tables.parts_of_rounds([REFUSED]) is None


def test_files_are_read_back_and_changes_are_shown(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(rows.to_json([ROW, GPU_ROW]))
    assert rows.read_ahead_rows(file) == [ROW, GPU_ROW]
    now = [replace(ROW, copied_bytes=0, compile_seconds=99.0), replace(GPU_ROW, compile_seconds=1.0), REFUSED]
    pairs = rows.changes(now, [ROW, GPU_ROW])
    assert pairs == [(ROW, now[0])], "seconds alone are no change, nor is a row that is new"
    assert "copied 3 > 0 MiB" in shown(tables.changes_table(pairs, "rows.json"))


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"device": "v5e"}]'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "no.json").write_text(text)
    with pytest.raises(LanternError, match="holds no rows"):
        rows.read_ahead_rows(tmp_path / "no.json")
