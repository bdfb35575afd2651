"""A roofline as SVG: kernels that multiply, by operations per byte from memory, under what the machine allows.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

import math
from html import escape

from inferir.profile.kernel_table import KindTable
from inferir.profile.machine_limits import MachineLimits

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 48
_LEAST_X = 0.25


def roofline_svg(tables: list[KindTable], limits: MachineLimits) -> str:
    """The drawing as an `<svg>` element; dots have the class of their kind of step, and a title. Its size follows from
    the dots. Empty if no kernel multiplies.
    """
    dots = [
        (table.kind, row.kernel, row.work.flops / max(1, row.work.memory), row.work.flops / row.seconds)
        for table in tables
        for row in table.kernels
        if row.work.flops and row.seconds
    ]
    if not dots:
        return ""
    ridge = limits.flops / limits.memory
    xs = (_LEAST_X, 4 * max(ridge, *(x for _, _, x, _ in dots)))
    ys = (min(_LEAST_X * limits.memory, *(y for *_, y in dots)) / 2, 2 * max(limits.flops, *(y for *_, y in dots)))

    def at(x: float, y: float) -> tuple[float, float]:
        across = _share(x, xs) * (WIDTH - _LEFT - _RIGHT)
        return _LEFT + across, HEIGHT - _BOTTOM - _share(y, ys) * (HEIGHT - _TOP - _BOTTOM)

    roof = [at(xs[0], xs[0] * limits.memory), at(ridge, limits.flops), at(xs[1], limits.flops)]
    parts = [f'<polyline class="roof" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in roof)}"/>']
    for value in _decades(xs):
        x, bottom = at(value, ys[0])
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{value:g}</text>')
    for value in _decades(ys):
        left, y = at(xs[0], value)
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value / 1e9:g}</text>')
    for kind, name, x, y in dots:
        across, down = at(max(x, xs[0]), y)
        title = escape(f"{name}, {kind}: {y / 1e9:,.1f} GFLOP/s at {x:.2f} FLOP/byte")
        parts.append(f'<circle class="{kind}" cx="{across:.1f}" cy="{down:.1f}" r="5"><title>{title}</title></circle>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">operations per byte from memory</text>')
    parts.append(f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})">GFLOP/s</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">{"".join(parts)}</svg>'


def _share(value: float, of: tuple[float, float]) -> float:
    """Where a value lies between two others, on a logarithmic scale: 0 … 1."""
    return math.log(value / of[0]) / math.log(of[1] / of[0])


def _decades(of: tuple[float, float]) -> list[float]:
    """The powers of ten between two values."""
    return [10.0**e for e in range(math.ceil(math.log10(of[0])), math.floor(math.log10(of[1])) + 1)]
