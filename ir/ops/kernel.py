"""kernel: regions, the unit of code generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.registry import anchors, define, opdef
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import need


def anchor_of(region: Node) -> Node | None:
    """The op that gives a region its anchor; a row-wise region has none."""
    body: Graph = region.attrs["body"]
    return next((node for node in body.nodes if opdef(node.op).anchor), None)


def _region_type(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    body: Graph = attrs["body"]
    known = anchors()
    need(attrs["anchor"] in known, f"anchor {attrs['anchor']!r} is not one of {', '.join(sorted(known))}")
    need(len(body.inputs) == len(types), f"{len(types)} operands for a body with {len(body.inputs)} inputs")
    need(not body.weights(), "the body holds a weight; pass it as an operand")
    for i, (value, given) in enumerate(zip(body.inputs, types, strict=True)):
        need(value.type == given, f"operand {i} is {given}, the body expects {value.type}")
    return tuple(v.type for v in body.outputs)


def _region_eval(attrs: Attrs, *tensors: Any) -> Any:
    from inferir.ir.graph.interpreter import run_body

    out = run_body(attrs["body"], tensors)
    return out[0] if len(out) == 1 else tuple(out)


define(
    "kernel.region",
    (0, None),
    _region_type,
    _region_eval,
    attrs={"anchor": str, "body": Graph, "name": str},
    doc="A group of ops that becomes one kernel; operands correspond to inputs of `body`, results to its outputs.",
)
