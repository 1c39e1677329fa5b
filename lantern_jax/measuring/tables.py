"""Rows as tables for people."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from lantern_jax.io import errors
from lantern_jax.measuring.fit import Need
from lantern_jax.measuring.rows import COMPARED, Row


def rows_table(rows: Sequence[Row]) -> Table:
    """Returns a table of rows; its title says what all have in common."""
    table = Table(title=_title(rows), title_justify="left", caption=_caption(rows), caption_justify="left")
    swept = [name for name in ("batch", "guidance") if len({getattr(row, name) for row in rows}) > 1]
    table.add_column("method", overflow="fold")
    heads = (
        *swept, "nodes", "depth", "passes", "tokens a pass", "ms a pass", "ms a level", "s a picture", "speed-up",
        "efficiency", "of floor", "substituted", "compiling, s",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        own = [f"{getattr(row, name):g}" for name in swept]
        table.add_row(_name(row), *own, *_cells(row))
    return table


def parts_table(rows: Sequence[Row]) -> Table:
    """Returns a table of the milliseconds of a pass by part."""
    known = [row for row in rows if row.parts]
    names = sorted({name for row in known for name in row.parts})
    table = Table(title="ms a pass, by part", title_justify="left")
    table.add_column("method", overflow="fold")
    for head in ("batch", "guidance", *names):
        table.add_column(head, justify="right")
    for row in known:
        numbers = (_number(row.parts.get(name, 0.0), 2) for name in names)
        table.add_row(_name(row), str(row.batch), f"{row.guidance:g}", *numbers)
    return table


def against_table(pairs: Sequence[tuple[Row, Mapping[str, float]]], file: str) -> Table:
    """Returns a table of new / old of rows that an older file has too."""
    table = Table(title=f"new / {file}", title_justify="left")
    table.add_column("method", overflow="fold")
    heads = ("batch", "guidance", "seconds", "ms a pass", "tokens a pass", "speed-up", "efficiency")
    for head in heads:
        table.add_column(head, justify="right")
    for row, ratios in pairs:
        numbers = (_number(ratios.get(name), 3) for name in COMPARED)
        table.add_row(_name(row), str(row.batch), f"{row.guidance:g}", *numbers)
    return table


def fit_table(found: Mapping[str, Need], limit: float, title: str) -> Table:
    """Returns a table of the largest batches that a device of ``limit`` bytes decodes, and what they take."""
    table = Table(
        title=title, title_justify="left",
        caption="Programs come in powers of two; a method that says 0 needs more for one picture.",
        caption_justify="left",
    )  # fmt: skip
    table.add_column("method", overflow="fold")
    for head in ("pictures together", "GB in all", "parameters", "caches, a picture", "working memory"):
        table.add_column(head, justify="right")
    for name, need in found.items():
        pictures = need.pictures if need.total <= limit else 0
        sizes = (need.total, need.parameters, need.state / need.pictures, need.working)
        table.add_row(name, str(pictures), *(f"{size / 1e9:.3g}" for size in sizes))
    return table


def _name(row: Row) -> str:
    return f"{row.label} (forced)" if row.forced else row.label


def _cells(row: Row) -> list[str]:
    low, high = row.quartiles
    compiling = "" if row.compile_cold is None else f"{row.compile_cold:.1f}, {row.compile_warm:.1f} kept"
    return [
        str(row.nodes),
        str(row.depth),
        f"{row.passes:.1f}",
        f"{row.tokens_a_pass:.2f}",
        _number(row.ms_a_pass, 2),
        _number(row.ms_a_level, 2),
        f"{row.seconds:.3f} [{low:.3f}, {high:.3f}]",
        f"{row.speedup:.2f}",
        f"{row.efficiency:.2f}",
        f"{row.floor_share:.0%}",
        "" if row.substituted is None or not row.nodes else f"{row.substituted:.1%}",
        compiling,
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _title(rows: Sequence[Row]) -> str:
    row = rows[0]
    fixed = [row.model, f"{row.pixels} px", row.dtype, row.device]
    for name in ("batch", "guidance"):
        if len({getattr(other, name) for other in rows}) == 1:
            fixed.append(f"{name} {getattr(row, name):g}")
    return ", ".join(fixed)


def _caption(rows: Sequence[Row]) -> Text:
    row = rows[-1]
    lines = [
        f"{row.repeats} batches a row, in turns; medians and quartiles; "
        f"{row.bandwidth / 1e9:.1f} GB/s read; {row.peak_memory / 2**30:.2f} GiB at most"
    ]
    if any(row.forced for row in rows):
        lines.append(
            "(forced): accepted lengths are replayed, no picture is meant; such a row tells of the engine"
        )
    if row.measured_passes is not None:
        lines.append(f"pictures are stopped after {row.measured_passes} passes, the rest is reckoned")
    lines.append(", ".join(f"{name} {version}" for name, version in row.versions.items()))
    return Text("\n".join(map(errors.printable, lines)), style="table.caption")
