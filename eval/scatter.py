"""A scatter plot with error bars and labels as SVG text, with nothing but Python."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 30, 70
LINE = 14


@dataclass(frozen=True)
class Point:
    """A labelled point with a vertical error bar; ``marked`` ones are drawn in another colour."""

    label: str
    x: float
    y: float
    low: float
    high: float
    marked: bool = False


def ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``, about ``most`` of them."""
    rough = max(high - low, 1e-9) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def scatter(points: Sequence[Point], title: str, x_title: str, y_title: str) -> str:
    """The plot as the content of an SVG file. Its axes begin and end at round numbers around all points."""
    x_ticks = ticks(min(point.x for point in points), max(point.x for point in points))
    y_ticks = ticks(min(point.low for point in points), max(point.high for point in points))

    def place(value: float, marks: list[float], start: float, end: float) -> float:
        return start + (value - marks[0]) / (marks[-1] - marks[0]) * (end - start)

    def across(value: float) -> float:
        return place(value, x_ticks, LEFT, WIDTH - RIGHT)

    def up(value: float) -> float:
        return place(value, y_ticks, HEIGHT - BOTTOM, TOP)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        '<g stroke="#ddd">',
        *(
            f'<line x1="{across(x):.1f}" y1="{TOP}" x2="{across(x):.1f}" y2="{HEIGHT - BOTTOM}"/>'
            for x in x_ticks
        ),
        *(f'<line x1="{LEFT}" y1="{up(y):.1f}" x2="{WIDTH - RIGHT}" y2="{up(y):.1f}"/>' for y in y_ticks),
        '</g><g fill="#555">',
        *(
            f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>'
            for x in map(_tidy, x_ticks)
        ),
        *(
            f'<text x="{LEFT - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
            for y in map(_tidy, y_ticks)
        ),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 22}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate(22 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text></g>",
        *_drawn(points, across, up),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(points: Sequence[Point], across, up) -> list[str]:
    """Bars, dots and labels; a label that would lie on another moves down."""
    lines, taken = [], []
    for point in sorted(points, key=lambda point: (up(point.y), point.x)):
        x, y, colour = across(point.x), up(point.y), "#c0392b" if point.marked else "#1f5fa8"
        lines.append(
            f'<line x1="{x:.1f}" y1="{up(point.low):.1f}" x2="{x:.1f}" y2="{up(point.high):.1f}" '
            f'stroke="{colour}" stroke-opacity="0.5" stroke-width="1.5"/>'
        )
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        width, row = 6.5 * len(point.label), y + 4
        left = x + 7 if x + 7 + width < WIDTH else x - 7 - width
        while any(
            abs(row - other) < LINE and left < end and start < left + width for other, start, end in taken
        ):
            row += LINE / 2
        taken.append((row, left, left + width))
        lines.append(f'<text x="{left:.1f}" y="{row:.1f}" fill="#222">{escape(point.label)}</text>')
    return lines


def _tidy(value: float) -> float:
    """Without the last digits that sums of steps leave."""
    return round(value, 10)
