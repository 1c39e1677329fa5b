"""Rows of a benchmark: stored as lines, told apart, compared."""

import dataclasses
import json

from lantern_jax.apps.measuring.rows import Row, row_of, to_lines
from lantern_jax.apps.measuring.tables import rows_table

ROW = Row(
    model="tiny", pixels=16, dtype="float32", device="cpu", batch=1, guidance=2.0, method="led",
    options={"temperature": 0.5}, nodes=8, depth=8, passes=90.5, tokens_a_pass=2.8,
    acceptance=[0.9, 0.5], ms_a_pass=4.5, seconds=0.4, quartiles=[0.39, 0.42], repeats=8,
    plain_seconds=0.8, speedup=2.0, speedup_quartiles=[1.9, 2.1], efficiency=0.71,
    substituted=0.05, distortion=0.8, forced=False, versions={"jax": "0.10.2"},
)  # fmt: skip


def changed(**values) -> Row:
    return dataclasses.replace(ROW, **values)


def test_rows_are_read_back_from_their_lines():
    forced = {"forced": True, "accept_lengths": 3.63, "substituted": None}
    rows = [ROW, changed(**forced, parts={"draft": 1.0})]
    lines = to_lines(rows).splitlines()
    assert [row_of(json.loads(line)) for line in lines] == rows
    assert row_of(json.loads(lines[0]) | {"of_a_newer_version": 1}) == ROW


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
