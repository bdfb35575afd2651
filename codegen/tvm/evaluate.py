"""Text for the value of a body expression at a place: the one mechanism behind row kernels and matmul epilogues.

A value of a region's body has a leading row axis (symbol T or R) and static feature axes, or only static axes
(weights). Its element at (row, index) is computed by walking the expression: elementwise ops combine their operands at
the broadcast index, views rewrite the index, gathers load a row number first, operands of the region are loads,
reductions read a per-row accumulator. `lanes` consecutive positions of the last axis are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.tvm.affine import Affine, flatten, unflatten
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.scalar import MEMORY, REGISTER, elementwise, power
from inferir.codegen.tvm.source import Writer, ramp, splat, vtype
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType

Index = tuple[Affine, ...]
Leaf = Callable[[Value, str, Index, int], "str | None"]


INDEX_LIMIT = 2**31 - 1  # kernels index memory with int32


class SplitNeededError(Exception):
    """The last-axis loop must be split at `at` (a position of its axis) for a concatenation to be decided."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass
class Evaluator:
    """Writes let-bindings for values into `out`.

    row_symbol: the symbolic row axis; memory: buffer name of every value that lies in memory (operands, results of
    earlier levels); leaf: asked first for every value, to bind accumulators.
    """

    row_symbol: Dim
    memory: Mapping[Value, str]
    out: Writer
    leaf: Leaf | None = None
    counter: int = 0
    cache: dict[tuple[Value, str, Index, int], str] = field(default_factory=dict)

    def fork(self, out: Writer) -> Evaluator:
        """An evaluator with an empty cache, for another scope."""
        return Evaluator(self.row_symbol, self.memory, out, self.leaf, self.counter)

    def let(self, text: str, dtype: str, lanes: int) -> str:
        """Bind an expression to a fresh name; predicates stay in place, TVM cannot bind vectors of them."""
        if dtype == "bool":
            return f"({text})"
        self.counter += 1
        name = f"v{self.counter}"
        self.out.line(f"{name}: T.let = {text}")
        return name

    def value(self, v: Value, row: str, index: Index, lanes: int) -> str:
        """The name of `v` at `row` and feature `index`, `lanes` wide along the last axis."""
        key = (v, row, index, lanes)
        if key not in self.cache:
            self.cache[key] = self._value(v, row, index, lanes)
        return self.cache[key]

    def _value(self, v: Value, row: str, index: Index, lanes: int) -> str:
        if self.leaf is not None:
            found = self.leaf(v, row, index, lanes)
            if found is not None:
                return found
        shape = static_shape(v.type, self.row_symbol)
        if len(index) != len(shape):
            raise CodegenError(f"index of rank {len(index)} for {v.type}")
        if lanes > 1 and (not shape or shape[-1] == 1):
            return splat(self.value(v, row, index, 1), lanes)
        if v in self.memory:
            return self.load(v, row, index, lanes)
        node = v.node
        if node.op == "core.scalar":
            raise CodegenError("a scalar needs the element type of its user")
        if node.op in _VIEWS:
            return _VIEWS[node.op](self, node, row, index, lanes)
        if opdef(node.op).elementwise:
            return self._elementwise(node, row, index, lanes)
        raise CodegenError(f"{node.op} has no element-wise form")

    def load(self, v: Value, row: str, index: Index, lanes: int) -> str:
        """Load from the buffer of `v`."""
        shape = static_shape(v.type, self.row_symbol)
        flat = flatten(index, shape)
        size = math.prod(shape)
        base = flat.text()
        if has_row(v.type, self.row_symbol):
            base = f"{row} * {size} + {base}"
        return self.load_at(v.type.dtype, self.memory[v], base, lanes)

    def load_at(self, dtype: DType, buffer: str, base: str, lanes: int) -> str:
        if dtype not in MEMORY:
            raise CodegenError(f"{dtype.value} values have no memory form")
        text = f"{buffer}[{ramp(base, lanes)}]"
        if dtype is DType.BF16:
            text = call("inf_bf16_to_f32", lanes, text)
        return self.let(text, REGISTER[dtype], lanes)

    def operands(self, node: Node, row: str, index: Index, lanes: int) -> list[str]:
        """The operands of an elementwise node at its broadcast index."""
        strong = [o.type.dtype for o in node.operands if o.type.rank > 0 and o.type.dtype is not DType.BOOL]
        dtype = strong[0] if strong else node.types[0].dtype
        return [self.operand(o, node.types[0], dtype, row, index, lanes) for o in node.operands]

    def operand(self, o: Value, result: TensorType, dtype: DType, row: str, index: Index, lanes: int) -> str:
        if o.op == "core.scalar":
            return self.scalar(o, dtype, lanes)
        shape = static_shape(o.type, self.row_symbol)
        # Feature axes align from the right, also where the operand has no row axis.
        aligned = (
            index[len(index) - len(shape) :]
            if len(shape) <= len(index)
            else (Affine(),) * (len(shape) - len(index)) + index
        )
        return self.value(o, row, tuple(Affine() if d == 1 else i for d, i in zip(shape, aligned, strict=True)), lanes)

    def scalar(self, o: Value, dtype: DType, lanes: int) -> str:
        value = o.node.attrs["value"]
        kind = REGISTER[dtype]
        if kind == "bool":
            return splat(f"T.bool({bool(value)})", lanes)
        literal = repr(float(value)) if kind == "float32" else repr(int(value))
        if literal in ("inf", "-inf"):
            return splat(f'T.{"min" if literal[0] == "-" else "max"}_value("float32")', lanes)
        return splat(f"T.{kind}({literal})", lanes)

    def _elementwise(self, node: Node, row: str, index: Index, lanes: int) -> str:
        out = node.types[0].dtype
        if out not in REGISTER:
            raise CodegenError(f"{node.op}: {out.value} values have no register form")
        if node.op == "tensor.cast":
            return self._cast(node, row, index, lanes)
        args = self.operands(node, row, index, lanes)
        floats = any(o.type.dtype.is_float for o in node.operands if o.type.rank > 0) or out.is_float
        if node.op == "tensor.pow":
            exponent = node.operands[1]
            known = float(exponent.node.attrs["value"]) if exponent.op == "core.scalar" else None
            text = power(args[0], args[1], known, lanes)
        else:
            text = elementwise(node.op, args, lanes, node.attrs, floats)
        name = self.let(text, REGISTER[out], lanes)
        return self.rounded(name, out, lanes)

    def rounded(self, name: str, dtype: DType, lanes: int) -> str:
        """Round a float32 register to what `dtype` can store."""
        return self.let(call("inf_round_bf16", lanes, name), "float32", lanes) if dtype is DType.BF16 else name

    def _cast(self, node: Node, row: str, index: Index, lanes: int) -> str:
        source, out = node.operands[0].type.dtype, node.types[0].dtype
        if source not in REGISTER:
            raise CodegenError(f"{node.op}: {source.value} values have no register form")
        (arg,) = self.operands(node, row, index, lanes)
        if REGISTER[source] != REGISTER[out]:
            return self.let(f'T.Cast("{vtype(REGISTER[out], lanes)}", {arg})', REGISTER[out], lanes)
        return self.rounded(arg, out, lanes) if source is not out else arg

    # --- views: the index is rewritten ---

    def _view(self, node: Node, row: str, index: Index, lanes: int) -> str:
        (x,) = node.operands
        old, new = static_shape(x.type, self.row_symbol), static_shape(node.types[0], self.row_symbol)
        return self.value(x, row, unflatten(flatten(index, new), old, lanes - 1), lanes)

    def _permute(self, node: Node, row: str, index: Index, lanes: int) -> str:
        (x,) = node.operands
        perm: Sequence[int] = node.attrs["perm"]
        if has_row(x.type, self.row_symbol):
            if perm[0] != 0:
                raise CodegenError("a permutation that moves the row axis has no kernel")
            perm = [p - 1 for p in perm[1:]]
        if lanes > 1 and perm[-1] != len(perm) - 1:
            raise CodegenError("a permutation of the last axis has no vector form")
        source: list[Affine] = [Affine()] * len(perm)
        for at, p in enumerate(perm):
            source[p] = index[at]
        return self.value(x, row, tuple(source), lanes)

    def _expand(self, node: Node, row: str, index: Index, lanes: int) -> str:
        (x,) = node.operands
        return self.operand(x, node.types[0], x.type.dtype, row, index, lanes)

    def _axis(self, node: Node) -> int:
        """The feature axis that `dim` of a view names."""
        dim = node.attrs["dim"] % node.types[0].rank
        if has_row(node.types[0], self.row_symbol):
            if dim == 0:
                raise CodegenError(f"{node.op} along the row axis has no kernel")
            dim -= 1
        return int(dim)

    def _slice(self, node: Node, row: str, index: Index, lanes: int) -> str:
        axis, step = self._axis(node), node.attrs["step"]
        if step != 1 and lanes > 1 and axis == len(index) - 1:
            raise CodegenError("a strided slice of the last axis has no vector form")
        moved = index[axis].scale(step) + node.attrs["start"]
        return self.value(node.operands[0], row, (*index[:axis], moved, *index[axis + 1 :]), lanes)

    def _cat(self, node: Node, row: str, index: Index, lanes: int) -> str:
        axis = self._axis(node)
        at = index[axis]
        span = lanes - 1 if axis == len(index) - 1 else 0
        start = 0
        for part in node.operands:
            size = static_shape(part.type, self.row_symbol)[axis]
            if start <= at.low and at.high + span < start + size:
                return self.value(part, row, (*index[:axis], at + (-start), *index[axis + 1 :]), lanes)
            start += size
            if at.low < start <= at.high + span:
                raise SplitNeededError(start - at.offset)
        raise CodegenError(f"{node.op}: index {at.text()} is outside {node.types[0]}")

    def _gather(self, node: Node, row: str, index: Index, lanes: int) -> str:
        """Rows of a table by number: `embedding(table, ids)`, `gather_rows(table, rows)`; one number per row."""
        table, ids = node.operands
        if not has_row(ids.type, self.row_symbol) or static_shape(ids.type, self.row_symbol):
            raise CodegenError(f"{node.op} by {ids.type} has no row kernel")
        if table not in self.memory:
            raise CodegenError(f"{node.op} of a computed table has no row kernel")
        sizes = table.type.shape[1:]
        width = 1
        for d in sizes:
            if not isinstance(d, int):
                raise CodegenError(f"{node.op}: axis {d} of the table is not static")
            width *= d
        count = table.type.shape[0]
        if isinstance(count, int) and count * width > INDEX_LIMIT:
            raise CodegenError(f"{node.op}: a table of {count * width} elements is beyond 32-bit indices")
        at = self.value(ids, row, (), 1)
        shape = tuple(d for d in sizes if isinstance(d, int))
        return self.load_at(
            table.type.dtype, self.memory[table], f"{at} * {width} + {flatten(index, shape).text()}", lanes
        )


_VIEWS: dict[str, Callable[[Evaluator, Node, str, Index, int], str]] = {
    "tensor.view": Evaluator._view,
    "tensor.permute": Evaluator._permute,
    "tensor.expand": Evaluator._expand,
    "tensor.slice": Evaluator._slice,
    "tensor.cat": Evaluator._cat,
    "tensor.embedding": Evaluator._gather,
    "tensor.gather_rows": Evaluator._gather,
}
