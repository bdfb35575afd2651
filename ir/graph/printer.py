"""IR text. `parse_graph(print_graph(g))` is structurally equal to `g` and keeps names and provenance.

    graph @main(%ids: i32[T]) -> (%1 as hidden) {
      %w = core.weight {name="embed"} : f32[256, 64]
      %1 = tensor.embedding(%w, %ids) : f32[T, 64] @ "model.embed:aten.embedding"
    }

An attribute holds none, true, false, a number, a JSON string, an element type, a dimension, what a token reads
(`sliding_window(512)`), a tuple of these, or a nested graph. A graph or input whose name is no plain word has that name
as a JSON string: `%a_b as "a/b": f32[T]`.
"""

from __future__ import annotations

import json
import re

from inferir.ir.contract.kv_reads import Reads
from inferir.ir.graph.attrs import AttrValue
from inferir.ir.graph.dims import dim_str
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node, Value

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def print_graph(graph: Graph, indent: str = "") -> str:
    """The text of a graph, without a trailing newline."""
    return _Printer(graph, indent).run()


class _Printer:
    def __init__(self, graph: Graph, indent: str) -> None:
        self.graph = graph
        self.indent = indent
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()

    def run(self) -> str:
        inner = self.indent + "  "
        lines = []
        for node in self.graph.nodes:
            self._name(node)
        for node in self.graph.nodes:
            if node.op != "core.input":
                lines.append(inner + self._line(node, inner))
        args = ", ".join(map(self._input, self.graph.inputs))
        outs = ", ".join(
            f"{self.names[v]} as {json.dumps(n)}"
            for n, v in zip(self.graph.output_names, self.graph.outputs, strict=True)
        )
        name = self.graph.name if _WORD.fullmatch(self.graph.name) else json.dumps(self.graph.name)
        head = f"graph @{name}({args}) -> ({outs}) {{"
        return "\n".join([head, *lines, self.indent + "}"])

    def _input(self, value: Value) -> str:
        label, name = self.names[value], str(value.node.attrs["name"])
        alias = "" if label == f"%{name}" else f" as {json.dumps(name)}"
        return f"{label}{alias}: {value.type}{_loc(value.node)}"

    def _name(self, node: Node) -> None:
        if node.op == "core.input":
            base = "%" + (_UNSAFE.sub("_", str(node.attrs["name"])) or "_")
        else:
            base = f"%{len(self.names)}"
        name, k = base, 1
        while name in self.taken:
            name, k = f"{base}_{k}", k + 1
        self.taken.add(name)
        for result in node.results:
            self.names[result] = name if len(node.results) == 1 else f"{name}#{result.index}"

    def _line(self, node: Node, inner: str) -> str:
        results = ", ".join(self.names[r] for r in node.results)
        args = "(" + ", ".join(self.names[v] for v in node.operands) + ")" if node.operands else ""
        attrs = ""
        if node.attrs:
            attrs = " {" + ", ".join(f"{k}={self._attr(v, inner)}" for k, v in node.attrs.items()) + "}"
        types = ", ".join(map(str, node.types))
        return f"{results} = {node.op}{args}{attrs} : {types}{_loc(node)}"

    def _attr(self, value: AttrValue, inner: str) -> str:
        if isinstance(value, Graph):
            return print_graph(value, inner)
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, float)):
            return repr(value)
        if isinstance(value, str):
            return json.dumps(value)
        if isinstance(value, DType):
            return value.value
        if isinstance(value, Reads):
            return str(value)
        if isinstance(value, tuple):
            return "(" + ", ".join(self._attr(v, inner) for v in value) + ")"
        return dim_str(value)


def _loc(node: Node) -> str:
    loc = node.loc
    return f" @ {json.dumps(f'{loc.module}:{loc.source}')}" if loc.module or loc.source else ""
