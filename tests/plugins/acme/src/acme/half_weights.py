"""half-weights: stores the matrices behind the activation of an MLP as bfloat16 in a float32 model."""

from __future__ import annotations

from dataclasses import dataclass

from acme.half_panels import FORMAT
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.rewrite import transform
from inferir.passes.context import RAGGED, Pass
from inferir.passes.plugin_passes import AddedPass


@dataclass(frozen=True)
class HalfWeights(Pass):
    """The weight of a `tensor.linear` in a module `down_proj` is stored as `half_panels`; others are packed later."""

    name = "half-weights"
    why = "the largest matrices are read in half the time"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node.op != "tensor.linear" or len(operands) != 2 or not node.loc.module.endswith("down_proj"):
                return None
            x, w = operands
            if x.type.rank != 2 or w.type.dtype is not DType.F32:
                return None
            b = Builder(node.loc)
            stored = FORMAT.transform(b, w)
            return b.op("tensor.linear_packed", x, *stored, n=w.type.shape[0], format=FORMAT.name)

        return transform(graph, visit)


ADDED = AddedPass("insert", 2, lambda options, context: HalfWeights())
