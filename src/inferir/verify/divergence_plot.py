"""Lines over token positions, on a logarithmic scale, as SVG. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 680, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 26, 34
_POINTS = 300  # that a line has at most; more are put together
_DECADES = 12  # that are shown at most, from the largest value down


@dataclass(frozen=True)
class Line:
    """Values at positions 0, 1, …; style: the class of the line in the page's style."""

    name: str
    style: str
    values: Sequence[float]


def plot(title: str, lines: Sequence[Line], bound: tuple[str, float] | None = None) -> str:
    """An `<svg>` element. bound: name and height of a level line. What is not finite is drawn at the upper edge, what
    is zero or far below all else at the lower one."""
    listed = [v for line in lines for v in line.values] + ([bound[1]] if bound else [])
    shown = [v for v in listed if math.isfinite(v) and v > 0] or [1.0]
    top = math.ceil(math.log10(max(shown)) + 1e-9)
    bottom = max(min(math.floor(math.log10(min(shown))), top - 1), top - _DECADES)
    longest = max((len(line.values) for line in lines), default=0)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>']
    parts += _axes(bottom, top, longest)
    if bound:
        parts.append(f'<path class="bound" d="M{_LEFT} {_y(bound[1], bottom, top):.1f} H{WIDTH - _RIGHT}"/>')
    for line in lines:
        step = max(1, -(-len(line.values) // _POINTS))
        values = [max(line.values[i : i + step]) for i in range(0, len(line.values), step)]
        points = [(_x(i * step, longest), _y(v, bottom, top)) for i, v in enumerate(values) if not math.isnan(v)]
        if len(points) == 1:
            parts.append(f'<circle class="{line.style}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline class="{line.style}" points="{path}"/>')
    names = [(line.name, line.style) for line in lines] + ([(bound[0], "bound")] if bound else [])
    return "\n".join([*parts, *_legend(names), "</svg>"])


def _axes(bottom: int, top: int, longest: int) -> list[str]:
    parts = []
    every = max(1, -(-(top - bottom) // 6))
    for decade in range(bottom, top + 1, every):
        y = _y(10.0**decade, bottom, top)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f} H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="end">1e{decade}</text>')
    ticks = _ticks(longest)
    for position in ticks:
        parts.append(f'<text x="{_x(position, longest):.1f}" y="{HEIGHT - 16}" class="middle">{position}</text>')
    parts.append(f'<text x="{(_LEFT + WIDTH) / 2}" y="{HEIGHT - 2}" class="middle">position</text>')
    return parts


def _ticks(longest: int) -> list[int]:
    """Some round positions."""
    step = 1
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000):
        step = factor
        if longest <= 8 * factor:
            break
    return list(range(0, longest, step))


def _legend(names: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], _LEFT
    for name, style in names:
        parts.append(f'<path class="{style}" d="M{x} 12 h22"/><text x="{x + 28}" y="16">{escape(name)}</text>')
        x += 28 + 7 * len(name) + 24
    return parts


def _x(position: int, longest: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * position / max(1, longest - 1)


def _y(value: float, bottom: int, top: int) -> float:
    height = HEIGHT - _TOP - _BOTTOM
    level = top if math.isinf(value) else bottom if value <= 0 else math.log10(value)
    return _TOP + height * (top - min(max(level, bottom), top)) / (top - bottom)
