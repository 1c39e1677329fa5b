"""SVG pictures of numbers with intervals: bars in panels side by side, and a scatter plot.

A picture holds the digest of its numbers, by which ``is_current`` recognizes it without drawing it again.
"""

import hashlib
import io
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lantern_jax.io.errors import LanternError

COLOURS = {False: "#1f5fa8", True: "#c0392b"}
# Heights at which a label is tried, in points above its own point.
_LABELS_UP = (0, 8, -8, 14, -14, 22, -22)
_STYLE: dict[str, Any] = {"svg.hashsalt": "lantern_jax", "svg.fonttype": "none", "font.size": 9}


class Bar(NamedTuple):
    """A number with its interval; ``marked`` ones are drawn in another colour."""

    value: float
    low: float
    high: float
    marked: bool = False


class Panel(NamedTuple):
    """Bars one below another, one per label; None where there is no number. ``band`` is the shaded range."""

    title: str
    bars: Sequence[Bar | None]
    band: tuple[float, float] | None = None


class Point(NamedTuple):
    """A labelled point with a vertical interval; ``marked`` ones are drawn in another colour."""

    label: str
    x: float
    y: float
    low: float
    high: float
    marked: bool = False


class Bars(NamedTuple):
    """A picture of panels whose bars share their labels."""

    title: str
    labels: Sequence[str]
    panels: Sequence[Panel]

    def draw(self) -> str:
        """Returns the content of an SVG file. Raises LanternError without matplotlib."""
        figure = _figure(2.5 + 3 * len(self.panels), 1 + 0.25 * len(self.labels))
        every = figure.subplots(1, len(self.panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(every, self.panels, strict=True):
            axes.set_title(panel.title, fontsize=9)
            if panel.band is not None:
                axes.axvspan(*panel.band, color="#eef3e6")
            for row, bar in enumerate(panel.bars):
                if bar is not None:
                    spread = [[bar.value - bar.low], [bar.high - bar.value]]
                    axes.barh(row, bar.value, color=COLOURS[bar.marked], xerr=spread, capsize=2, zorder=2)
            axes.set_yticks(range(len(self.labels)), self.labels)
            axes.axvline(0, color="#555", linewidth=1)
            axes.grid(axis="x", alpha=0.3)
        every[0].invert_yaxis()
        return _svg(figure, self)


class Scatter(NamedTuple):
    """A picture of points."""

    title: str
    x_title: str
    y_title: str
    points: Sequence[Point]

    def draw(self) -> str:
        """Returns the content of an SVG file. Raises LanternError without matplotlib."""
        figure = _figure(9, 6)
        axes = figure.subplots()
        for point in self.points:
            spread, colour = [[point.y - point.low], [point.high - point.y]], COLOURS[point.marked]
            axes.errorbar(point.x, point.y, yerr=spread, fmt="o", color=colour, ecolor=(colour, 0.5))
        axes.set(title=self.title, xlabel=self.x_title, ylabel=self.y_title)
        axes.grid(alpha=0.3)
        _label(figure, axes, self.points)
        return _svg(figure, self)


def _label(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    """Writes labels beside their points, each in the first place where it covers no other label and no point."""
    import matplotlib
    from matplotlib.transforms import Bbox

    with matplotlib.rc_context(_STYLE):
        figure.draw_without_rendering()
        centres = axes.transData.transform([(point.x, point.y) for point in points])
        taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in centres]
        inside = axes.get_window_extent()
        for point in points:
            for up, (right, side) in product(_LABELS_UP, ((7, "left"), (-7, "right"))):
                where = {"xytext": (right, up), "textcoords": "offset points", "va": "center", "ha": side}
                text = axes.annotate(point.label, (point.x, point.y), **where)
                box = text.get_window_extent()
                if box.count_overlaps(taken) == 0 and inside.x0 < box.x0 and box.x1 < inside.x1:
                    break
                text.remove()
            else:
                text = axes.annotate(point.label, (point.x, point.y))
            taken.append(text.get_window_extent())


def is_current(path: Path, picture: Bars | Scatter) -> bool:
    """Tells whether a file was drawn from the numbers of ``picture``."""
    return path.exists() and _digest(picture) in path.read_text(encoding="utf-8")


def _digest(picture: Bars | Scatter) -> str:
    return f"sha256 {hashlib.sha256(repr(picture).encode()).hexdigest()}"


def check_plots() -> None:
    """Raises LanternError unless matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise LanternError("plots need matplotlib: pip install matplotlib, or leave --plot out") from None


def _figure(width: float, height: float):
    check_plots()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure, picture: Bars | Scatter) -> str:
    import matplotlib

    file = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Title": picture.title, "Description": _digest(picture)}
    with matplotlib.rc_context(_STYLE):
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()
