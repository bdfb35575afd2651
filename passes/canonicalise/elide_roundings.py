"""elide-roundings: inside a kernel, half-precision values stay in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import transform
from inferir.passes.context import REGIONS, Pass

_HALF = {DType.BF16: ml_dtypes.bfloat16, DType.F16: np.float16}


class ElideRoundings(Pass):
    """Rewrites region bodies so that bf16 and f16 values computed inside are f32, and are rounded only where they leave
    the region or are written to a cache. What the region reads and returns keeps its type. Rounds less often than
    the captured model; float32 graphs do not change.
    """

    name = "elide-roundings"
    why = "kernels compute in float32 anyway; rounding in between costs time and accuracy"
    requires = frozenset({REGIONS})

    def run(self, graph: Graph) -> Graph:
        done: dict[Graph, Graph] = {}

        def visit(node: Node, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
            if node.op != "kernel.region":
                return None
            body = node.attrs["body"]
            if body not in done:
                done[body] = _Widened(body).graph()
            if done[body] is body:
                return None
            return Builder(node.loc).node(node.op, operands, node.attrs.replace(body=done[body])).results

        return transform(graph, visit)


class _Widened:
    """`stored` holds values with their captured type where they exist in it, `wide` the float32 form of half-precision
    values.
    """

    def __init__(self, body: Graph) -> None:
        self.body = body
        self.stored: dict[Value, Value] = {}
        self.wide: dict[Value, Value] = {}
        self.changed = False

    def graph(self) -> Graph:
        for node in self.body.nodes:
            self._node(node)
        if not self.changed:
            return self.body
        outputs = tuple(self._narrow(v) for v in self.body.outputs)
        return Graph(tuple(self._narrow(v) for v in self.body.inputs), outputs, self.body.output_names, self.body.name)

    def _node(self, node: Node) -> None:
        b, op = Builder(node.loc), opdef(node.op)
        if op.source:
            self.stored[node.result] = node.result
        elif node.op == "tensor.cast":
            self._cast(node, b)
        elif node.op == "tensor.linear_packed" and _half(node.result):
            self.wide[node.result] = b.op(
                node.op, *map(self._narrow, node.operands), **node.attrs.replace(dtype=DType.F32)
            )
            self.changed = True
        elif op.moves:
            self._move(node, b)
        elif op.elementwise or op.reduction or op.decompose is not None:
            self._compute(node, b)
        else:
            self._keep(node, b)

    def _keep(self, node: Node, b: Builder) -> None:
        new = b.node(node.op, [self._narrow(v) for v in node.operands], node.attrs)
        self.stored.update(zip(node.results, new.results, strict=True))

    def _cast(self, node: Node, b: Builder) -> None:
        source, result = node.operands[0], node.result
        if not _half(source) and not _half(result):
            self._keep(node, b)
        elif not source.type.dtype.is_float or not result.type.dtype.is_float:
            target = DType.F32 if _half(result) else node.attrs["dtype"]
            new = b.op(node.op, self._operand(source), dtype=target)
            (self.wide if _half(result) else self.stored)[result] = new
            self.changed |= _half(result)
        elif DType.F64 in (source.type.dtype, result.type.dtype):
            self._keep(node, b)
        else:
            (self.wide if _half(result) else self.stored)[result] = self._operand(source)
            self.changed |= _half(result)

    def _move(self, node: Node, b: Builder) -> None:
        """Moving elements does not round: keep the form the operand has."""
        if not any(v in self.wide for v in node.operands):
            self._keep(node, b)
            return
        operands = [self._operand(v) for v in node.operands]
        self.wide[node.result] = b.op(node.op, *operands, **node.attrs)

    def _compute(self, node: Node, b: Builder) -> None:
        if not any(_half(v) for v in (*node.operands, *node.results)):
            self._keep(node, b)
            return
        first = opdef(node.op).converts_from
        own = node.operands[first:] if first is not None else ()
        operands = [
            self._narrow(v) if v in own else self._number(node, i) if v.op == "core.scalar" else self._operand(v)
            for i, v in enumerate(node.operands)
        ]
        new = b.op(node.op, *operands, **node.attrs)
        (self.wide if _half(node.result) else self.stored)[node.result] = new
        self.changed = True

    def _number(self, node: Node, position: int) -> Value:
        """A number is rounded to the captured type of the tensors that it meets, unless the op takes it as it is: a
        comparison of half-precision values depends on it.
        """
        number = node.operands[position]
        kinds = [v.type.dtype for v in node.operands[opdef(node.op).conditions :] if _half(v)]
        value = number.node.attrs["value"]
        if not kinds or not isinstance(value, float) or position in opdef(node.op).exact_numbers:
            return number
        rounded = _rounded(value, kinds[0])
        return number if rounded == value else Builder(number.node.loc).scalar(rounded)

    def _operand(self, value: Value) -> Value:
        """The value in float32 if it is half precision."""
        if not _half(value):
            return self.stored[value]
        if value not in self.wide:
            self.wide[value] = Builder(value.node.loc).op("tensor.cast", self.stored[value], dtype=DType.F32)
        return self.wide[value]

    def _narrow(self, value: Value) -> Value:
        """The value in its captured type."""
        if value not in self.stored:
            self.stored[value] = Builder(value.node.loc).op("tensor.cast", self.wide[value], dtype=value.type.dtype)
        return self.stored[value]


def _rounded(value: float, dtype: DType) -> float:
    with np.errstate(over="ignore"):
        return float(_HALF[dtype](np.float32(value)))


def _half(value: Value) -> bool:
    return value.type.dtype in _HALF
