"""How TIR spells what the walk over a body decides: let-bound vectors of neighbours in one row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from inferir.codegen.lower.emitter import Emitter, Place
from inferir.codegen.lower.evaluate import Evaluator
from inferir.codegen.lower.index import Index
from inferir.codegen.lower.rows import static_shape
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.scalar import MEMORY, OPS, REGISTER, elementwise, literal
from inferir.codegen.tvm.source import Writer, ramp, splat, vtype
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node, Value

INDEX_LIMIT = 2**31 - 1  # kernels index memory with int32

Bound = Callable[["TvmEmitter", Value, Place], "str | None"]


@dataclass
class TvmEmitter(Emitter[str]):
    """Writes the let-bindings of one scope into `out`.

    row_symbol: the symbolic row axis; memory: buffer name of every value that lies in memory (operands, results of
    earlier levels); given: asked first for every value, for what accumulators hold; names: numbers that are free; row:
    text of the row's number; scattered: elements are computed one by one, so that neighbours may part.
    """

    row_symbol: Dim
    memory: Mapping[Value, str]
    out: Writer
    given: Bound | None = None
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    row: str = "row"
    scattered: bool = False
    walk: Evaluator[str] = field(init=False)

    splits: ClassVar[bool] = True
    ops: ClassVar[Container[str]] = OPS
    registers: ClassVar[Container[DType]] = REGISTER

    def __post_init__(self) -> None:
        self.walk = Evaluator(self.row_symbol, self)

    def fork(self, out: Writer) -> TvmEmitter:
        """An emitter that knows no values yet, for another scope."""
        return TvmEmitter(self.row_symbol, self.memory, out, self.given, self.names, self.row, self.scattered)

    def value(self, v: Value, index: Sequence[Index] = (), lanes: int = 1) -> str:
        """The name of `v` at feature `index` of the row, `lanes` wide along the last axis."""
        return self.walk.value(v, Place(tuple(index), lanes))

    def let(self, text: str, dtype: str) -> str:
        """Bind an expression to a fresh name; predicates stay in place, TVM cannot bind vectors of them."""
        if dtype == "bool":
            return f"({text})"
        name = f"v{next(self.names)}"
        self.out.line(f"{name}: T.let = {text}")
        return name

    def span(self, place: Place) -> int | None:
        return None if self.scattered else place.lanes - 1

    def bound(self, value: Value, place: Place) -> str | None:
        return self.given(self, value, place) if self.given is not None else None

    def in_memory(self, value: Value) -> bool:
        return value in self.memory

    def load(self, source: Value, row: str | None, at: Index, place: Place) -> str:
        dtype, base, lanes = source.type.dtype, at.text(), place.lanes
        if dtype not in MEMORY:
            raise CodegenError(f"{dtype.value} values have no memory form")
        if row is not None:
            count, width = source.type.shape[0], prod(static_shape(source.type, source.type.shape[0]))
            if isinstance(count, int) and count * width > INDEX_LIMIT:
                raise CodegenError(f"a table of {count * width} elements is beyond 32-bit indices")
            base = f"{row} * {width} + {base}"
        text = f"{self.memory[source]}[{ramp(base, lanes)}]"
        if dtype is DType.BF16:
            text = call("inf_bf16_to_f32", lanes, text)
        elif dtype is DType.BOOL:
            text += f" != {splat('T.uint8(0)', lanes)}"
        return self.let(text, REGISTER[dtype])

    def as_row(self, x: str) -> str:
        return x

    def number(self, value: float, dtype: DType, place: Place) -> str:
        return literal(value, REGISTER[dtype], place.lanes)

    def positions(self, at: Index, step: int, dtype: DType, place: Place) -> str:
        if dtype.is_float:  # TVM's simplifier fails on arithmetic with it
            raise CodegenError("a range of floating-point numbers has no kernel")
        base = at.text() if place.lanes == 1 else f"T.ramp({at.text()}, {step}, {place.lanes})"
        return self.let(f'T.Cast("{vtype(REGISTER[dtype], place.lanes)}", {base})', REGISTER[dtype])

    def spread(self, x: str, place: Place) -> str:
        return splat(x, place.lanes)

    def apply(self, node: Node, args: Sequence[str], dtype: DType, place: Place) -> str:
        return self.let(elementwise(node, args, dtype, place.lanes), REGISTER[node.types[0].dtype])

    def cast(self, x: str, source: DType, out: DType, place: Place) -> str:
        kind = REGISTER[out]
        if REGISTER[source] == kind:
            return x
        if out is DType.BOOL:
            return self.let(f"({x}) != {literal(0, REGISTER[source], place.lanes)}", kind)
        return self.let(f'T.Cast("{vtype(kind, place.lanes)}", {x})', kind)

    def rounded(self, x: str, dtype: DType, place: Place) -> str:
        return self.let(call("inf_round_bf16", place.lanes, x), "float32")


def stored(value: str, dtype: DType, lanes: int) -> str:
    """What is stored of a register."""
    if dtype is DType.BOOL:
        return f'T.Cast("{vtype("uint8", lanes)}", {value})'
    return call("inf_f32_to_bf16", lanes, value) if dtype is DType.BF16 else value
