"""One section of the kernel graph as SVG: a column of boxes, arrows for values. Colours come from the page's style."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferir.inspect.artifact_graph import RegionBox

WIDTH = 620
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)", re.MULTILINE)
_LEFT, _BOX = 70, 520
_LINE, _PAD, _GAP = 17, 10, 26
_CHARS = 70  # that fit into a box in the small font


def section_svg(regions: Sequence[RegionBox], name: str) -> str:
    """The drawing as an `<svg>` element whose content has the id `name`, for `reuse`."""
    tops, y = [], _GAP
    for region in regions:
        tops.append(y)
        y += _height(region) + _GAP
    parts = [_edges(regions, tops)]
    parts += [_box(region, top) for region, top in zip(regions, tops, strict=True)]
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img"><g id="{name}">\n{body}\n</g></svg>'


def reuse(regions: Sequence[RegionBox], name: str) -> str:
    """The same drawing again, by reference."""
    height = _GAP + sum(_height(r) + _GAP for r in regions)
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"><use href="#{name}"/></svg>'


def _lines(region: RegionBox) -> list[str]:
    lines = _wrap(" → ".join(region.ops))
    if region.weights:
        lines += _wrap("weights: " + ", ".join(_tail(w) for w in region.weights))
    return [*lines, *_wrap("gives " + ", ".join(region.results))]


def _height(region: RegionBox) -> int:
    return 2 * _PAD + _LINE * (1 + len(_lines(region)))


def _box(region: RegionBox, top: int) -> str:
    height = _height(region)
    kernels = ", ".join(region.kernels) or "no kernel"
    full = escape(any_layer("\n".join((region.module, kernels, *region.weights))))
    rows = [
        f'<g class="{escape(region.anchor)}"><title>{full}</title>',
        f'<rect x="{_LEFT}" y="{top}" width="{_BOX}" height="{height}" rx="6"/>',
        f'<text class="name" x="{_LEFT + _PAD}" y="{top + _PAD + 12}">{escape(kernels)}</text>',
        f'<text class="anchor" x="{_LEFT + _BOX - _PAD}" y="{top + _PAD + 12}">{escape(region.anchor)}</text>',
    ]
    for number, line in enumerate(_lines(region), 1):
        rows.append(f'<text x="{_LEFT + _PAD}" y="{top + _PAD + 12 + number * _LINE}">{escape(line)}</text>')
    return "\n".join([*rows, "</g>"])


def _edges(regions: Sequence[RegionBox], tops: Sequence[int]) -> str:
    """Straight arrows between neighbours; values that skip regions, or come from outside, run beside the boxes."""
    middle, paths = _LEFT + _BOX // 2, []
    lanes: list[int] = []  # last row that each lane on the left serves
    for target, region in enumerate(regions):
        for source in region.sources:
            if source == target - 1:
                start = tops[source] + _height(regions[source])
                paths.append(f"M{middle} {start} V{tops[target] - 2}")
            else:
                start = tops[source] + _height(regions[source]) - 12
                x = _side(lanes, source, target)
                paths.append(f"M{_LEFT} {start} H{x} V{tops[target] + 14} H{_LEFT - 2}")
        if region.outside and target == 0:
            paths.append(f"M{middle} 0 V{tops[0] - 2}")
        elif region.outside:
            paths.append(f"M{_side(lanes, 0, target)} 0 V{tops[target] + 14} H{_LEFT - 2}")
    if regions:
        paths.append(f"M{middle} {tops[-1] + _height(regions[-1])} v{_GAP - 2}")
    return "\n".join(f'<path d="{p}" marker-end="url(#arrow)"/>' for p in paths)


def _side(lanes: list[int], source: int, target: int) -> int:
    """The x of the first lane beside the boxes that is free from `source` to `target`."""
    lane = next((i for i, last in enumerate(lanes[:3]) if last <= source), len(lanes))
    lanes[lane : lane + 1] = [target]
    return _LEFT - 14 - 12 * min(lane, 3)


def any_layer(text: str) -> str:
    """`text` with layer numbers in module paths as `*`: a drawing may stand for several layers."""
    return _NUMBER.sub("*", text)


def _tail(weight: str) -> str:
    """The end of a weight's name, from its module on, without a layer number."""
    parts = weight.split(".")[-3:]
    return ".".join(parts[1:] if parts[0].isdigit() else parts)


def _wrap(text: str) -> list[str]:
    """`text` in lines that fit into a box, broken at spaces where there are any."""
    return textwrap.wrap(text, _CHARS, break_on_hyphens=False) or [""]
