"""The row-wise anchor: a body of elementwise ops, casts, row reductions, views, gathers and cache writes.

The rows of a task are computed one after another. For a row, the body's *roots* (reductions and outputs) are computed
in levels: a root's level is one more than that of the reductions it depends on. Roots of one level that sweep the same
shape share a sweep and its common subexpressions; everything elementwise is recomputed where it is needed, unless it is
an output of an earlier level, which is then loaded.
"""

from __future__ import annotations

import math

from inferir.codegen.lower.cache_write import CacheWrite
from inferir.codegen.lower.decompose import decompose, over_last_axis
from inferir.codegen.lower.rows import Root, find_roots, has_row, row_symbol, stores, sweep_shapes
from inferir.codegen.tvm.kernels import kv_write
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.kernels.sample_tokens import scratch_bytes, write_sample
from inferir.codegen.tvm.kernels.sweep import Reduction, RowSweeps, Shape
from inferir.codegen.tvm.regions import LoweredRegion, RegionContext
from inferir.codegen.tvm.scalar import MEMORY, OPS
from inferir.codegen.tvm.source import COUNT_NAMES, Param, TaskKernel, Writer, entry
from inferir.ir.contract.kernel_args import Operand, Result
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim, dim_str
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Value

ELEMENTS_PER_TASK = 16 * 1024
LEAST_ELEMENTS = 512  # fewer take less time than handing out the task
TASKS = 8  # tasks that an operation over the most rows of its bucket should have, so that a few threads share it


def lower(body: Graph, context: RegionContext) -> LoweredRegion:
    """One kernel. Raises `CodegenError` naming the op that has no row-wise form."""
    row = row_symbol(body)
    count_name(row)  # raises for rows that are not counted
    kernel = rowwise_kernel(context.name, body, context.bound(dim_str(row)))
    results = [i for i, v in enumerate(body.outputs) if not stores(v)]
    return LoweredRegion((kernel,), (*map(Operand, range(len(body.inputs))), *map(Result, results)))


def rowwise_kernel(name: str, body: Graph, most_rows: int = ELEMENTS_PER_TASK) -> TaskKernel:
    """Lower a row-wise body; parameters are its inputs in order, then the outputs that are not caches written in place.

    `most_rows` is the most rows a step may have; tasks are sized by it. Raises `CodegenError` naming the op that has
    no form here.
    """
    body = decompose(body, OPS)
    return _RowKernel(name, over_last_axis(body, row_symbol(body)), most_rows).lower()


def count_name(row: Dim) -> str:
    name = f"n_{row}".lower()
    if name not in COUNT_NAMES:
        raise CodegenError(f"rows along {row} have no run-time count")
    return name


class _RowKernel:
    def __init__(self, name: str, body: Graph, most_rows: int) -> None:
        self.name = name
        self.most_rows = most_rows
        self.body = body
        self.row = row_symbol(body)
        self.memory: dict[Value, str] = {}
        self.params: list[Param] = []
        self.roots = find_roots(body)
        self.shapes = {root: self._shapes(root) for root in self.roots}
        folded = [root for root in self.roots if root.output is None]
        self.reductions = {root.value: self._reduction(k, root) for k, root in enumerate(folded)}
        self._declare_params()

    # --- analysis ---

    def _shapes(self, root: Root) -> list[Shape]:
        """Sweep shapes to try, best first; a reduction has one, the last axis of which it folds."""
        swept = root.value.node.operands[0] if root.value.op == "sample.draw" else root.swept
        own, *others = sweep_shapes(swept, self.row)
        return [own] if root.output is None else [own, *sorted(others, key=lambda s: -s[-1])]

    def _reduction(self, number: int, root: Root) -> Reduction:
        if not root.swept.type.dtype.is_float:
            raise CodegenError(f"{root.value.op} of {root.swept.type.dtype.value} has no kernel")
        accumulator = Accumulator(f"acc{number}", root.value.op.removeprefix("tensor."))
        return Reduction(accumulator, f"red{number}", self.shapes[root][0][:-1], root.value.type.dtype)

    def _declare_params(self) -> None:
        written = {v.node.operands[0]: v for v in self.body.outputs if stores(v)}
        for i, value in enumerate(self.body.inputs):
            dtype = value.type.dtype
            if dtype not in MEMORY:
                raise CodegenError(f"operand {i} is {value.type}, which has no memory form")
            kind = MEMORY[dtype]
            if value in written and written[value].node.attrs["role"] == "k" and dtype is DType.BF16:
                kind = "int32"  # keys are written as pairs
            self.params.append(Param(f"p{i}", kind))
            self.memory[value] = f"b{i}"
        for i, value in enumerate(self.body.outputs):
            if stores(value):
                if value.node.operands[0] not in self.memory:
                    raise CodegenError("kv.write to a computed cache has no kernel")
                continue
            if not has_row(value.type, self.row):
                raise CodegenError(f"output {i} is {value.type}: it does not run along the rows")
            if value.type.dtype not in MEMORY:
                raise CodegenError(f"output {i} is {value.type}, which has no memory form")
            self.params.append(Param(f"o{i}", MEMORY[value.type.dtype]))

    # --- writing ---

    def lower(self) -> TaskKernel:
        rows = self._rows_per_task()
        count = count_name(self.row)
        inner = Writer()
        self._rows(inner)
        out = Writer()
        buffers = {f"{'b' if p.name[0] == 'p' else 'w'}{p.name[1:]}": p.name for p in self.params}
        with entry(out, self.name, self.params, buffers, noalias=True):
            for reduction in self.reductions.values():
                reduction.declare(out)
            head = f"for r_ in range(T.min({rows}, {count} - task * {rows})):" if rows > 1 else "for r_ in range(1):"
            with out.block(head):
                out.line(f"row: T.let[T.int32] = task * {rows} + r_")
                out.lines(inner.text().splitlines())
        tasks = f"({count} + {rows - 1}) // {rows}" if rows > 1 else count
        scratch = max([0, *(scratch_bytes(r.value.node) for r in self.roots if r.value.op == "sample.draw")])
        return TaskKernel(self.name, tuple(self.params), out.text(), tasks, scratch)

    def _rows_per_task(self) -> int:
        widest = max(math.prod(shapes[0]) for shapes in self.shapes.values())
        return max(1, min(ELEMENTS_PER_TASK // widest, max(self.most_rows // TASKS, LEAST_ELEMENTS // widest)))

    def _rows(self, out: Writer) -> None:
        sweeps = RowSweeps(self.row, self.memory, self.reductions)
        for root in self.roots:
            if stores(root.value):
                kv_write.prefetch(out, sweeps.emitter(out, 0), CacheWrite.of(root.value, self.row))
        for level in range(max(r.level for r in self.roots) + 1):
            groups: dict[Shape, list[Root]] = {}
            here = [root for root in self.roots if root.level == level]
            for root in here:
                if root.value.op == "sample.draw":
                    write_sample(out, root.value.node, sweeps.emitter(out, level), f"w{root.output}")
                else:
                    groups.setdefault(self.shapes[root][0], []).append(root)
            for roots in groups.values():
                sweeps.group(out, roots, level, self.shapes)
            for root in here:
                if root.output is not None and not stores(root.value):
                    sweeps.later.setdefault(root.value, (level + 1, f"w{root.output}"))
