"""Horizontal bars with intervals, several panels side by side, as SVG text, with nothing but Python.

The same numbers give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from eval.scatter import ticks

LABELS, PANEL, GAP, ROW, TOP, BOTTOM = 220, 260, 30, 24, 44, 34
PLAIN_COLOUR, MARKED_COLOUR = "#1f5fa8", "#c0392b"


@dataclass(frozen=True)
class Bar:
    """A number with its interval; ``marked`` ones are drawn in another colour."""

    value: float
    low: float
    high: float
    marked: bool = False


@dataclass(frozen=True)
class Panel:
    """Bars below each other, one a label, from 0 to their values.

    Attributes:
        title: what the numbers are.
        bars: None where there is no number.
        band: shaded from the first number to the second; None for no band.
    """

    title: str
    bars: Sequence[Bar | None]
    band: tuple[float, float] | None = None


def draw_bars(labels: Sequence[str], panels: Sequence[Panel], title: str) -> str:
    """The plot as the content of an SVG file."""
    width = LABELS + len(panels) * (PANEL + GAP)
    height = TOP + ROW * len(labels) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, label in enumerate(labels):
        lines.append(
            f'<text x="{LABELS - 8}" y="{_middle(row) + 4:.1f}" text-anchor="end" fill="#222">{escape(label)}</text>'
        )
    for number, panel in enumerate(panels):
        lines += _panel(panel, LABELS + number * (PANEL + GAP), len(labels))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _middle(row: int) -> float:
    return TOP + ROW * (row + 0.5)


def _panel(panel: Panel, left: float, rows: int) -> list[str]:
    there = [bar for bar in panel.bars if bar is not None]
    ends = [0.0, *(panel.band or ()), *(end for bar in there for end in (bar.low, bar.value, bar.high))]
    marks = ticks(min(ends), max(ends), most=5)
    bottom = TOP + ROW * rows

    def across(value: float) -> float:
        return left + (value - marks[0]) / (marks[-1] - marks[0]) * PANEL

    lines = [
        f'<text x="{left + PANEL / 2:.1f}" y="{TOP - 18}" text-anchor="middle">{escape(panel.title)}</text>'
    ]
    if panel.band is not None:
        start, end = map(across, panel.band)
        lines.append(
            f'<rect x="{start:.1f}" y="{TOP}" width="{end - start:.1f}" height="{bottom - TOP}" fill="#eef3e6"/>'
        )
    for mark in marks:
        x = across(mark)
        lines.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        text = f"{round(mark, 10):g}"
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555">{text}</text>')
    for row, bar in enumerate(panel.bars):
        lines += [] if bar is None else _bar(bar, _middle(row), across)
    lines.append(f'<line x1="{across(0):.1f}" y1="{TOP}" x2="{across(0):.1f}" y2="{bottom}" stroke="#555"/>')
    return lines


def _bar(bar: Bar, y: float, across) -> list[str]:
    colour = MARKED_COLOUR if bar.marked else PLAIN_COLOUR
    start, end = sorted((across(0), across(bar.value)))
    low, high = across(bar.low), across(bar.high)
    return [
        f'<rect x="{start:.1f}" y="{y - 7:.1f}" width="{end - start:.1f}" height="14" fill="{colour}" '
        'fill-opacity="0.75"/>',
        f'<path d="M{low:.1f} {y - 4:.1f}V{y + 4:.1f}M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f} {y - 4:.1f}V{y + 4:.1f}" '
        'stroke="#222" fill="none"/>',
    ]
