"""Rows in files and tables, what changed between two files, and the search for the largest batch."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from lantern_jax.ahead import fit, rows, tables
from lantern_jax.ahead.arguments import Batch
from lantern_jax.ahead.fit import Need
from lantern_jax.io.errors import LanternError
from lantern_jax.measuring.shapes import size_shapes

ROW = rows.AheadRow(
    "v5e", None, "tiny", "ar", 1, "advance", 2**30, 2**20, 0, 0, 0, 3 * 2**20, 2_500_000, None, 1_000_000, None,
    500_000, {"score qkv": 2_000_000, "draft": 500_000}, {"all-reduce": {"count": 2, "bytes": 2**20}}, 1, 12.0,
)  # fmt: skip
GPU_ROW = replace(
    ROW, device="h100:8", mesh="data=8,model=1", cycles_per_round=None, kernels_per_round=352, own_cycles=None,
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
        "2.00 + 0.50 L",
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


@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize(
    "working",
    [lambda n: 0, lambda n: 10 * n, lambda n: n * n, lambda n: 300 if n < 8 else 40 * n, lambda n: 900],
)
def test_the_largest_batch_fits_and_its_double_does_not(least, working):
    compiled, smallest = [], Need(least, 1000, 100 * least, 0)

    def needs(pictures):
        compiled.append(pictures)
        return Need(pictures, 1050, 100 * pictures, working(pictures))

    def total(pictures):
        return 1050 + 100 * pictures + working(pictures)

    for pictures in (least, 2 * least, 8 * least, 64 * least):
        del compiled[:]
        assert fit.largest_there(needs, total(pictures), smallest).total == total(pictures)
        assert len(compiled) == len(set(compiled)) <= 5
    assert fit.largest_there(needs, 10, smallest).pictures == least, "which does not fit"
    assert fit.largest_there(needs, 10**9, smallest).pictures == fit.MOST * least


def test_nothing_is_compiled_whose_state_alone_does_not_fit(monkeypatch):
    """Nor is decoding compiled where drawing does not fit."""
    shapes, compiled = size_shapes("tiny", "float32"), []
    job = shapes.job({"method": "ar"})
    smallest = fit.least_of(Batch(shapes, job, 1, np.array(jax.devices()[:1])[:, None]))

    def need(batch, platform, limit, kinds, hasty):
        compiled.append((batch.pictures, kinds))
        if kinds == ("draw",):
            return Need(batch.pictures, 0, 0, smallest.state * batch.pictures)
        return smallest.times(batch.pictures)

    monkeypatch.setattr(fit, "need_there", need)
    limit = smallest.parameters + 10 * smallest.state
    found = fit.fitting(shapes, {"ar": job}, limit, lambda name: None)
    assert found["ar"].pictures == 4
    assert compiled == [(8, ("draw",)), (4, ("draw",)), (4, ("start", "advance"))]


@pytest.mark.parametrize("working", [0, 40])
def test_a_hasty_estimate_is_taken_where_it_is_clear(working, monkeypatch):
    """Near the limit, where hasty estimates are known to err, the program that devices run is compiled."""
    shapes, devices = size_shapes("tiny", "float32"), np.array(jax.local_devices()[:1])[:, None]
    job = shapes.job({"method": "ar"})
    smallest = fit.least_of(Batch(shapes, job, 1, devices))
    missed = smallest.state * working // 100
    compiled = []

    def need(batch, platform, limit, kinds, hasty):
        compiled.append((batch.pictures, hasty))
        own = Need(batch.pictures, 0, 0, 0) if kinds == ("draw",) else smallest.times(batch.pictures)
        # Working memory is a fifth more than the hasty estimate.
        return Need(own.pictures, own.parameters, own.state, missed if hasty else missed * 6 // 5)

    monkeypatch.setattr(fit, "need_there", need)

    def largest(limit):
        del compiled[:]
        return fit.fitting(shapes, {"ar": job}, limit, lambda name: None, devices, "tpu")["ar"].pictures

    four = smallest.times(4).total
    assert largest(2 * four) >= 4 and all(hasty for _, hasty in compiled)
    assert largest(four + missed) == (2 if working else 4)
    assert (4, False) in compiled, "near the limit"
