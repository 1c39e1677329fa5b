"""Plots of rows as SVG: speed-up by batch size, milliseconds per pass by nodes, speed against what relaxing costs.

The same rows give the same file: identifiers are hashed with a fixed salt, and no date is written.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lantern_jax.io.errors import LanternError
from lantern_jax.measuring.rows import Row

NEEDS = "plots need matplotlib: pip install matplotlib, or leave --plot out"


def check_plots() -> None:
    """Raises LanternError unless matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LanternError(NEEDS) from None


def plot_files(rows: Sequence[Row], folder: Path) -> dict[Path, bytes]:
    """Returns the contents of the plots that these rows suffice for, by file."""
    guessed = [row for row in rows if not row.is_plain]
    plots = {
        "speedup-by-batch.svg": _lines(
            guessed, _series, lambda row: (row.batch, row.speedup), "pictures decoded together", "speed-up"
        ),
        "pass-by-nodes.svg": _lines(
            [row for row in rows if row.nodes or row.is_plain],
            lambda row: f"{row.model}, batch {row.batch}, guidance {row.guidance:g}",
            lambda row: (row.nodes, row.ms_a_pass), "nodes drafted", "ms per pass", dots=True,
        ),
        "speed-by-quality.svg": _lines(
            [row for row in guessed if row.substituted is not None], _series,
            lambda row: (100 * row.substituted, row.speedup), "tokens substituted, %", "speed-up", dots=True,
        ),
    }  # fmt: skip
    return {folder / name: content for name, content in plots.items() if content is not None}


def _series(row: Row) -> str:
    guidance = f", guidance {row.guidance:g}"
    return f"{row.label}{guidance}{', forced' if row.forced else ''}"


def _lines(
    rows: Iterable[Row],
    series: Callable[[Row], str],
    point: Callable[[Row], tuple[float, float]],
    x_title: str,
    y_title: str,
    dots: bool = False,
) -> bytes | None:
    """Returns one plot, with one colour per series; None if no row belongs in it."""
    grouped: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        grouped.setdefault(series(row), []).append(point(row))
    return _svg(grouped, x_title, y_title, dots) if grouped else None


def _svg(grouped: Mapping[str, list[tuple[float, float]]], x_title: str, y_title: str, dots: bool) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[str, Any] = {"svg.hashsalt": "lantern_jax", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for name, points in grouped.items():
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, marker="o", linestyle="none" if dots else "-", label=name)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
