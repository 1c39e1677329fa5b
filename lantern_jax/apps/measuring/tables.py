"""Rows as tables for people."""

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from lantern_jax.apps.measuring.rows import Row
from lantern_jax.apps.terminal.console import table
from lantern_jax.io import errors

_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "nodes": lambda row: str(row.nodes),
    "depth": lambda row: str(row.depth),
    "passes": lambda row: f"{row.passes:.1f}",
    "tokens per pass": lambda row: f"{row.tokens_a_pass:.2f}",
    "ms per pass": lambda row: f"{row.ms_a_pass:.2f}",
    "s per picture": lambda row: f"{row.seconds:.3f}",
    "quartiles": lambda row: "{:.3f}, {:.3f}".format(*row.quartiles),
    "speed-up": lambda row: f"{row.speedup:.2f}",
    "efficiency": lambda row: f"{row.efficiency:.2f}",
    "substituted": lambda row: "" if row.substituted is None or row.is_plain else f"{row.substituted:.1%}",
}


# What most people want to know.
_MAIN = ("tokens per pass", "ms per pass", "s per picture", "speed-up", "substituted")


def rows_table(rows: Sequence[Row], verbose: bool = True) -> Table:
    """Returns a table of rows, with all columns or what most people want; its title says what all rows share."""
    columns = _COLUMNS if verbose else _MAIN
    swept = [name for name in ("batch", "guidance") if len({getattr(row, name) for row in rows}) > 1]
    cells = (
        (
            f"{row.label} (forced)" if row.forced else row.label,
            *(f"{getattr(row, name):g}" for name in swept),
            *(_COLUMNS[name](row) for name in columns),
        )
        for row in rows
    )
    return table(("method", *swept, *columns), cells, title=_title(rows, swept), caption=_caption(rows))


def _title(rows: Sequence[Row], swept: Sequence[str]) -> str:
    row = rows[0]
    fixed = [f"{name} {getattr(row, name):g}" for name in ("batch", "guidance") if name not in swept]
    return ", ".join([row.model, f"{row.pixels} px", row.dtype, row.device, *fixed])


def _caption(rows: Sequence[Row]) -> Text:
    row, repeats = rows[-1], sorted({row.repeats for row in rows})
    lines = [f"{' to '.join(map(str, repeats[:1] + repeats[1:][-1:]))} batches per row, in turns; medians"]
    if any(row.forced for row in rows):
        lines.append(
            "(forced): accepted lengths are replayed and the pictures mean nothing; such a row is about the engine"
        )
    if row.measured_passes is not None:
        lines.append(f"pictures are stopped after {row.measured_passes} passes, the rest is extrapolated")
    lines.append(", ".join(f"{name} {version}" for name, version in row.versions.items()))
    return Text("\n".join(map(errors.printable, lines)), style="table.caption")
