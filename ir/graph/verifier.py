"""The verifier: every invariant of a graph that the types alone do not give."""

from __future__ import annotations

from inferir.ir.errors import IRError, VerifyError
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.registry import infer_types, opdef


def verify(graph: Graph) -> None:
    """Raise `VerifyError` naming the first node whose op, attributes, operands or result types are wrong.

    Also checked: inputs have distinct names, weights of one name have one type, bodies of regions are graphs over their
    own inputs.
    """
    names = graph.input_names
    if len(set(names)) != len(names):
        raise VerifyError(f"graph {graph.name}: input {_duplicate(names)!r} is listed twice")
    if len(set(graph.output_names)) != len(graph.output_names):
        raise VerifyError(f"graph {graph.name}: output {_duplicate(graph.output_names)!r} is listed twice")
    weights: dict[str, Node] = {}
    for node in graph.nodes:
        _node(graph, node)
        if node.op == "core.weight":
            first = weights.setdefault(str(node.attrs["name"]), node)
            if first.types != node.types:
                raise VerifyError(f"weight {node.attrs['name']!r} is {first.types[0]} and {node.types[0]}")


def _node(graph: Graph, node: Node) -> None:
    try:
        definition = opdef(node.op)
        if definition.source:
            for key, kinds in definition.attrs.items():
                if not isinstance(node.attrs.get(key), kinds):
                    raise IRError(f"{node.op}: attribute {key!r} is missing or of the wrong type")
        else:
            types = infer_types(definition, [v.type for v in node.operands], node.attrs)
            if types != node.types:
                raise IRError(
                    f"{node.op}: has type {', '.join(map(str, node.types))}, should have {', '.join(map(str, types))}"
                )
        for value in node.attrs.values():
            if isinstance(value, Graph):
                verify(value)
    except IRError as error:
        raise VerifyError(f"graph {graph.name}, at {str(node.loc) or 'unknown place'}: {error}") from None


def _duplicate(names: tuple[str, ...]) -> str:
    return next(n for i, n in enumerate(names) if n in names[:i])
