"""recognise-softcap: cap · tanh(x / cap)."""

from __future__ import annotations

from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.rewrite import Any_, P, Scalar, match, transform
from inferir.passes.context import RAGGED, Pass

_SOFTCAP = P("tensor.mul", P("tensor.tanh", P("tensor.div", Any_("x"), Scalar("divisor"))), Scalar("cap"))


class RecogniseSoftcap(Pass):
    """cap·tanh(x / cap) becomes `nn.softcap`."""

    name = "recognise-softcap"
    why = "one op in the epilogue of the logits' matrix product"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        return transform(graph, _visit)


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "tensor.mul":
        return None
    found = match(_SOFTCAP, rebuild(node, operands).result)
    if found is None:
        return None
    cap = float(found["cap"].node.attrs["value"])
    if cap != float(found["divisor"].node.attrs["value"]) or cap <= 0:
        return None
    return Builder(node.loc).op("nn.softcap", found["x"], cap=cap)
