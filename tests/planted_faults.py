"""Faults to plant in passes and in the code generator, for tests of `inferir verify --bisect`.

`plant(name)` puts a fault in for good, as a process of its own does that is to show it; `planted(monkeypatch, name)`
until a test ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferir.ir.contract.kv_reads import SlidingWindow
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.rewrite import transform
from inferir.passes.insert.insert_kv import InsertKv
from inferir.passes.merge.merge_qkv import MergeQkv
from inferir.passes.recognise.recognise_rms_norm import RecogniseRmsNorm
from inferir.passes.recognise.recognise_rotary import RecogniseRotary

Visit = Callable[[Node, tuple[Value, ...]], Value | None]
SetAttr = Callable[[Any, str, Any], None]


def _wrong_eps(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "nn.rms_norm":
        return None
    return Builder(node.loc).op(node.op, *operands, **node.attrs.replace(eps=1e-3))


def _dropped_bias(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "tensor.linear" or len(operands) != 3:
        return None
    return Builder(node.loc).op(node.op, *operands[:2], **node.attrs)


def _swapped_half(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "nn.rotary":
        return None
    x, cos, sin = operands
    b = Builder(node.loc)
    return b.op(node.op, x, cos, b.op("tensor.neg", sin), **node.attrs)


def _window_off_by_one(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "attn.paged" or not isinstance(node.attrs["reads"], SlidingWindow):
        return None
    wider = SlidingWindow(node.attrs["reads"].window + 1)
    return Builder(node.loc).op(node.op, *operands, **node.attrs.replace(reads=wider))


PASSES: dict[str, tuple[type, Visit]] = {
    "wrong eps": (RecogniseRmsNorm, _wrong_eps),
    "dropped bias": (MergeQkv, _dropped_bias),
    "swapped rotary half": (RecogniseRotary, _swapped_half),
    "off-by-one window": (InsertKv, _window_off_by_one),
}
"""Faults of passes: the pass, and what it does to nodes after its own work."""


def plant_pass(name: str, put: SetAttr = setattr) -> None:
    """Let a pass have a fault of `PASSES`."""
    kind, visit = PASSES[name]
    own = kind.run  # type: ignore[attr-defined]

    def run(self: Any, graph: Graph) -> Graph:
        return transform(own(self, graph), visit)

    put(kind, "run", run)
