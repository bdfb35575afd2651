"""share-common: equal computations become one value."""

from __future__ import annotations

from typing import Any

from inferir.ir.graph.graph import Graph, Node, Value, attr_text, rebuild
from inferir.ir.graph.rewrite import transform
from inferir.passes.context import Pass


class ShareCommon(Pass):
    """Merges nodes with the same op, operands and attributes. All ops are pure, so this is always right; the first
    provenance stays.
    """

    name = "share-common"
    why = "layers recompute the same views, scalars and tables"

    def run(self, graph: Graph) -> Graph:
        seen: dict[Any, tuple[Value, ...]] = {}

        def visit(node: Node, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
            if node.op == "kernel.region":
                return None
            key = (node.op, operands, tuple((k, attr_text(v)) for k, v in node.attrs.items()), node.types)
            found = seen.get(key)
            if found is None:
                found = seen[key] = rebuild(node, operands).results
            return found

        return transform(graph, visit)
