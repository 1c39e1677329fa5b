"""Rows of the account as tables for people."""

from collections.abc import Sequence

from rich.table import Table

from eval.ahead.rows import COMPARED, AheadRow
from eval.ahead.sheets import SHEETS
from lantern_jax.apps.measuring.data_sheets import DEVICES, GIB, GPU

_MIB = 2**20
# How many parts of a round are shown; the rest are summed.
_MOST_PARTS = 8


def ahead_table(rows: Sequence[AheadRow]) -> Table:
    """Returns a table of programs, refused ones with the reason."""
    table = Table(title=_title(rows), title_justify="left", caption=_caption(rows), caption_justify="left")
    named = [
        name for name in ("device", "mesh", "size", "batch") if len({getattr(row, name) for row in rows}) > 1
    ]
    for head in (*named, "method", "program"):
        table.add_column(head, overflow="fold")
    for head in ("arguments, GiB", "temporaries, MiB", "copied, MiB", "a round", "outside it", "collectives"):
        table.add_column(head, justify="right")
    table.add_column("compiling, s", justify="right")
    table.add_column("error", overflow="fold")
    for row in rows:
        table.add_row(
            *(str(getattr(row, name) or "") for name in named),
            row.method,
            row.program,
            _number(row.arguments_bytes, GIB),
            _number(row.temporary_bytes, _MIB),
            _number(row.copied_bytes, _MIB),
            _work(row),
            _cycles(row.cycles_per_call) if row.kernels_per_call is None else str(row.kernels_per_call),
            _collectives(row),
            f"{row.compile_seconds:.0f}",
            row.error or "",
        )
    return table


def parts_of_rounds(rows: Sequence[AheadRow]) -> Table | None:
    """Returns a table of where the work of a round goes, or None where no row has rounds."""
    known = [row for row in rows if row.parts]
    if not known:
        return None
    table = Table(title="a round by part, the largest first", title_justify="left")
    for head in ("device", "method", "parts"):
        table.add_column(head, overflow="fold")
    for row in known:
        show = str if row.kernels_per_round is not None else _cycles
        parts = sorted(row.parts.items(), key=lambda each: -each[1])
        shown = [f"{name} {show(value)}" for name, value in parts[:_MOST_PARTS]]
        rest = sum(value for _, value in parts[_MOST_PARTS:])
        table.add_row(row.device, row.method, ", ".join([*shown, *([f"other {show(rest)}"] if rest else [])]))
    return table


def changes_table(pairs: Sequence[tuple[AheadRow, AheadRow]], file: str) -> Table:
    """Returns a table of the numbers that differ from an older file's: old > new."""
    table = Table(title=f"{file} > now", title_justify="left")
    for head in ("device", "mesh", "size", "method", "batch", "program"):
        table.add_column(head, overflow="fold")
    table.add_column("changed", overflow="fold")
    for old, new in pairs:
        found = []
        for name in COMPARED:
            before, after = getattr(old, name), getattr(new, name)
            if before != after:
                unit, word = (
                    (_MIB, " MiB") if name.endswith("bytes") else (1e6, " M") if "cycles" in name else (1, "")
                )
                label = (
                    name.removesuffix("_bytes").replace("_per_", " per ").replace("temporary", "temporaries")
                )
                found.append(f"{label} {_number(before, unit) or '-'} > {_number(after, unit) or '-'}{word}")
        if old.collectives != new.collectives:
            found.append(f"collectives {_collectives(old) or '-'} > {_collectives(new) or '-'}")
        if old.error != new.error:
            found.append(f"error {old.error or '-'} > {new.error or '-'}")
        table.add_row(*(str(part or "") for part in new.key), "; ".join(found))
    return table


def _title(rows: Sequence[AheadRow]) -> str:
    """Says what all rows have in common, and what each device has."""
    common = [str(rows[0].size)] if len({row.size for row in rows}) == 1 else []
    if len({row.batch for row in rows}) == 1:
        common.append(f"batch {rows[0].batch}")
    if len({row.mesh for row in rows}) == 1 and rows[0].mesh:
        common.append(rows[0].mesh)
    for name in dict.fromkeys(row.device.partition(":")[0] for row in rows):
        memory, sheet = DEVICES[name].memory / GIB, SHEETS[name]
        common.append(
            f"{name}: {memory:.2f} GiB, {sheet.bandwidth / 1e9:.0f} GB/s, {sheet.peak / 1e12:.0f} T/s"
        )
    return "; ".join(common)


def _caption(rows: Sequence[AheadRow]) -> str:
    devices = {DEVICES[row.device.partition(":")[0]].platform for row in rows}
    told = []
    if devices - {GPU}:
        told.append("TPUs: million cycles, the compiler's estimates.")
    if GPU in devices:
        told.append("GPUs: kernels.")
    if any(row.inner_loops for row in rows):
        told.append("Inner loops (L) are counted once.")
    return " ".join(told)


def _work(row: AheadRow) -> str:
    if row.kernels_per_round is not None:
        return f"{row.kernels_per_round}" + (" L" if row.inner_loops else "")
    return _cycles(row.cycles_per_round) + (" L" if row.inner_loops else "")


def _cycles(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:.2f}"


def _number(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.4g}"


def _collectives(row: AheadRow) -> str:
    return ", ".join(
        f"{each['count']} {kind} {each['bytes'] / _MIB:.3g} MiB" for kind, each in row.collectives.items()
    )
