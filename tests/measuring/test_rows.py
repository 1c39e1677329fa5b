"""Rows of a benchmark: stored as lines, told apart, compared."""

import dataclasses
import json

import pytest

from lantern_jax.apps.measuring.rows import Row, against, read_rows, to_lines
from lantern_jax.apps.measuring.tables import rows_table
from tests.refused import refused

ROW = Row(
    model="tiny", pixels=16, dtype="float32", device="cpu", batch=1, guidance=2.0, method="led",
    options={"temperature": 0.5}, nodes=8, depth=8, passes=90.5, tokens_a_pass=2.8,
    acceptance=[0.9, 0.5], ms_a_pass=4.5, seconds=0.4, quartiles=[0.39, 0.42], repeats=8,
    plain_seconds=0.8, pictures_a_second=2.5, speedup=2.0, speedup_quartiles=[1.9, 2.1], efficiency=0.71,
    floor_share=0.5, bandwidth=2e10, peak_memory=1 << 30, substituted=0.05,
    distortion=0.8, forced=False, versions={"jax": "0.10.2"},
)  # fmt: skip


def changed(**values) -> Row:
    return dataclasses.replace(ROW, **values)


def test_rows_are_read_back_from_their_lines(tmp_path):
    forced = {"forced": True, "accept_lengths": 3.63, "substituted": None}
    rows = [ROW, changed(**forced, parts={"draft": 1.0})]
    file = tmp_path / "rows.jsonl"
    file.write_text(to_lines(rows))
    assert read_rows(file) == rows
    assert len(file.read_text().splitlines()) == 2
    newer = json.loads(to_lines([ROW])) | {"of_a_newer_version": 1}
    file.write_text(json.dumps(newer) + "\n\n")
    assert read_rows(file) == [ROW]


def test_what_holds_no_rows_is_refused_in_one_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    for content in ("", "\n", "{}\n", "[1]\n", "no JSON\n", '{"model": "tiny"}\n'):
        file.write_text(content)
        with refused("lantern bench --out"):
            read_rows(file)
    # Compared values must be numbers.
    for wrong in ("0.4", [0.4], {}):
        file.write_text(to_lines([changed(seconds=wrong)]))
        with refused("line 1 is no row"):
            read_rows(file)
    with refused(r"cannot read .*nowhere"):
        read_rows(tmp_path / "nowhere")


def test_an_older_file_is_compared_row_by_row():
    """With the row of the same configuration, regardless of its numbers, and with the last of several."""
    newest = changed(seconds=0.8, speedup=1.0, versions={"jax": "0.9"})
    old = [changed(seconds=9.0), newest, changed(batch=8, seconds=7.0)]
    others = changed(guidance=1.0), changed(options={"temperature": 0.9})
    new = [changed(seconds=0.2), others[0], changed(batch=8, seconds=3.5), others[1]]
    pairs = against(new, old)
    assert [row for row, _ in pairs] == [new[0], new[2]]
    assert pairs[0][1]["seconds"] == pytest.approx(0.25) and pairs[0][1]["speedup"] == pytest.approx(2.0)
    assert pairs[1][1]["seconds"] == pytest.approx(0.5) and pairs[1][1]["ms_a_pass"] == 1.0
    forced = changed(forced=True, accept_lengths=3.63)
    assert not against([forced], old) and not against([changed(forced=True, accept_lengths=3.0)], [forced])


def test_a_caption_covers_all_rows():
    assert str(rows_table([changed(repeats=16), changed(repeats=3)]).caption).startswith(
        "3 to 16 batches per row"
    )
    assert str(rows_table([ROW]).caption).startswith("8 batches per row")


def test_substitutions_are_shown_for_methods_without_a_tree_too():
    rows = [changed(method="ar", nodes=0, substituted=0.0), changed(method="own", nodes=0),
            changed(method="zipar", nodes=0, substituted=None)]  # fmt: skip
    (column,) = (column for column in rows_table(rows).columns if column.header == "substituted")
    assert list(column.cells) == ["", "5.0%", ""]
