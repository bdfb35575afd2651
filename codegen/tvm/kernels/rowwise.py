"""The row-wise anchor: a body of elementwise ops, casts, row reductions, views, gathers and cache writes.

The rows of a chunk are computed one after another. For a row, the body's *roots* (reductions and outputs) are computed
in levels: a root's level is one more than that of the reductions it depends on. Roots of one level that sweep the same
shape share a sweep and its common subexpressions; everything elementwise is recomputed where it is needed, unless it is
an output of an earlier level, which is then loaded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from inferir.codegen.lower.decompose import decompose
from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.tvm.affine import Affine, Var, flatten, unflatten
from inferir.codegen.tvm.evaluate import Evaluator, Index, SplitNeededError
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.kernels.sample_tokens import scratch_bytes, write_draw
from inferir.codegen.tvm.llvm.llvm_lib import call, sync
from inferir.codegen.tvm.scalar import MEMORY
from inferir.codegen.tvm.source import COUNT_NAMES, ChunkKernel, Param, Writer, entry_head, pieces, ramp
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import opdef

ELEMENTS_PER_CHUNK = 16 * 1024
LEAST_ELEMENTS = 512  # fewer take less time than handing out the chunk
CHUNKS = 8  # chunks that an operation over the most rows of its bucket should have, so that a few threads share it
LANES = 16


@dataclass
class Root:
    """A value that is computed in a sweep of its own: an output of the body or a reduction."""

    value: Value
    level: int
    output: int | None = None
    accumulator: Accumulator | None = None
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # sweep shapes to try, best first

    @property
    def swept(self) -> Value:
        """The value evaluated in the sweep: what is reduced, stored or written to a cache."""
        if self.accumulator is not None:
            return self.value.node.operands[0]
        if self.value.op == "sample.draw":
            return self.value.node.operands[0]
        return self.value.node.operands[1] if self.value.op == "kv.write" else self.value

    @property
    def outer(self) -> int:
        """Number of leading sweep axes that a reduction keeps."""
        return len(self.shapes[0]) - 1


def row_symbol(body: Graph) -> Dim:
    """The symbolic row axis of a row-wise body: that of its first output that is no cache."""
    for value in body.outputs:
        if value.op == "kv.write":
            return value.node.operands[2].type.shape[0]
        if value.type.rank and not isinstance(value.type.shape[0], int):
            return value.type.shape[0]
    raise CodegenError("the region has no row axis")


def rowwise_kernel(name: str, body: Graph, most_rows: int = ELEMENTS_PER_CHUNK) -> ChunkKernel:
    """Lower a row-wise body; parameters are its inputs in order, then the outputs that are not caches written in place.

    `most_rows` is the most rows a step may have; chunks are sized by it. Raises `CodegenError` naming the op that has
    no form here.
    """
    return _RowKernel(name, decompose(body), most_rows).lower()


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
        self.reductions: dict[Value, str] = {}
        self.later: dict[Value, tuple[int, str]] = {}  # outputs that are loaded from level n on
        self.widths: dict[str, set[int]] = {}
        self.roots = self._find_roots()
        self._declare_params()

    # --- analysis ---

    def _find_roots(self) -> list[Root]:
        level: dict[Value, int] = {}
        roots: list[Root] = []
        for node in self.body.nodes:
            base = max((level[v] + (1 if v in self.reductions else 0) for v in node.operands), default=0)
            for result in node.results:
                level[result] = base
            if opdef(node.op).reduction:
                kind = node.op.removeprefix("tensor.")
                k = len(self.reductions)
                self.reductions[node.result] = f"red{k}"
                roots.append(Root(node.result, base, accumulator=Accumulator(f"acc{k}", kind)))
        for i, value in enumerate(self.body.outputs):
            at = level[value] + (1 if value in self.reductions else 0)
            roots.append(Root(value, at, output=i))
        for root in roots:
            root.shapes = self._shapes(root)
        return roots

    def _shapes(self, root: Root) -> list[tuple[int, ...]]:
        own = static_shape(root.swept.type, self.row) or (1,)
        if root.accumulator is not None:
            node = root.value.node
            dims = node.attrs["dims"] if "dims" in node.attrs else (node.attrs["dim"],)
            rank = node.operands[0].type.rank
            if [d % rank for d in dims] != [rank - 1]:
                raise CodegenError(f"{node.op} over axes {dims} of {node.operands[0].type} has no row kernel")
            return [own]
        total = math.prod(own)
        seen, stack, shapes = set(), [root.swept], [own]
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            try:
                shape = static_shape(v.type, self.row)
            except CodegenError:
                continue
            size = math.prod(shape)
            if size == total and shape and shape not in shapes:
                shapes.append(shape)
            stack += v.node.operands
        return [own, *sorted(shapes[1:], key=lambda s: -s[-1])]

    def _declare_params(self) -> None:
        written = {v.node.operands[0]: v for v in self.body.outputs if v.op == "kv.write"}
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
            if value.op == "kv.write":
                if value.node.operands[0] not in self.memory:
                    raise CodegenError("kv.write to a computed cache has no kernel")
                continue
            if not has_row(value.type, self.row):
                raise CodegenError(f"output {i} is {value.type}: it does not run along the rows")
            if value.type.dtype not in MEMORY:
                raise CodegenError(f"output {i} is {value.type}, which has no memory form")
            self.params.append(Param(f"o{i}", MEMORY[value.type.dtype]))

    # --- writing ---

    def lower(self) -> ChunkKernel:
        rows = self._rows_per_chunk()
        count = count_name(self.row)
        inner = Writer(3)
        self._rows(inner)
        out = Writer()
        out.line("@T.prim_func(private=True)")
        with out.block(entry_head(self.name, self.params)):
            out.line('T.func_attr({"tirx.noalias": True})')
            for p in self.params:
                out.line(
                    f'{"b" if p.name[0] == "p" else "w"}{p.name[1:]} = T.decl_buffer((1,), "{p.dtype}", data={p.name})'
                )
            self._declare_locals(out)
            head = f"for r_ in range(T.min({rows}, {count} - chunk * {rows})):" if rows > 1 else "for r_ in range(1):"
            with out.block(head):
                out.line(f"row: T.let[T.int32] = chunk * {rows} + r_")
                text = inner.text().splitlines()
                for line in text:
                    out.line(line.removeprefix("    " * 3))
            out.line("return T.int32(0)")
        chunks = f"({count} + {rows - 1}) // {rows}" if rows > 1 else count
        scratch = max([0, *(scratch_bytes(r.value.node) for r in self.roots if r.value.op == "sample.draw")])
        return ChunkKernel(self.name, tuple(self.params), out.text(), chunks, scratch)

    def _rows_per_chunk(self) -> int:
        widest = 1
        for root in self.roots:
            size = math.prod(root.shapes[0])
            widest = max(widest, size)
        return max(1, min(ELEMENTS_PER_CHUNK // widest, max(self.most_rows // CHUNKS, LEAST_ELEMENTS // widest)))

    def _declare_locals(self, out: Writer) -> None:
        for root in self.roots:
            if root.accumulator is not None:
                root.accumulator.declare(out, sorted(self.widths[root.accumulator.name]))
                root.accumulator.declare_result(out)
                size = 1
                for d in root.shapes[0][:-1]:
                    size *= d
                kind = "int32" if root.value.type.dtype is DType.I32 else "float32"
                out.line(f'{self.reductions[root.value]} = T.alloc_buffer(({size},), "{kind}")')

    def _rows(self, out: Writer) -> None:
        self.counter = 0
        for root in self.roots:
            if root.value.op == "kv.write":
                self._prefetch_cache(out, root.value.node)
        for level in range(max(r.level for r in self.roots) + 1):
            groups: dict[tuple[int, ...], list[Root]] = {}
            for root in self.roots:
                if root.level == level:
                    if root.output is not None and root.value.op == "sample.draw":
                        self.counter = write_draw(out, root.value.node, self._evaluator(out, level), f"w{root.output}")
                        continue
                    groups.setdefault(root.shapes[0], []).append(root)
            for roots in groups.values():
                self._group(out, roots, level)
            for root in self.roots:
                if root.level == level and root.output is not None and root.value.op != "kv.write":
                    self.later.setdefault(root.value, (level + 1, f"w{root.output}"))

    def _group(self, out: Writer, roots: Sequence[Root], level: int) -> None:
        """One sweep for several roots; where their sweep shapes do not fit together, one each."""
        try:
            self._sweep(out, roots, level, roots[0].shapes[0])
        except CodegenError as first:
            if len(roots) > 1:
                for root in roots:
                    self._group(out, [root], level)
                return None
            problem = first
            for shape in roots[0].shapes[1:]:
                try:
                    return self._sweep(out, roots, level, shape)
                except CodegenError as error:
                    problem = error
            raise problem from None

    def _evaluator(self, out: Writer, level: int) -> Evaluator:
        memory = dict(self.memory)
        memory.update({v: buffer for v, (at, buffer) in self.later.items() if at <= level})

        def leaf(v: Value, row: str, index: Index, lanes: int) -> str | None:
            if v in self.reductions and lanes == 1:
                flat = flatten(index, static_shape(v.type, self.row))
                kind = "int32" if v.type.dtype is DType.I32 else "float32"
                return evaluator.let(f"{self.reductions[v]}[{flat.text()}]", kind, 1)
            return None

        evaluator = Evaluator(self.row, memory, out, leaf, self.counter)
        return evaluator

    def _sweep(self, out: Writer, roots: Sequence[Root], level: int, shape: tuple[int, ...]) -> None:
        splits = {0, shape[-1]}
        while True:
            trial = Writer(3)
            widths: dict[str, set[int]] = {}
            start = self.counter
            try:
                self._write_sweep(trial, roots, level, shape, sorted(splits), widths)
            except SplitNeededError as need:
                self.counter = start
                if not 0 < need.at < shape[-1] or need.at in splits:
                    raise CodegenError(f"a concatenation is cut at {need.at} of {shape}") from None
                splits.add(need.at)
                continue
            except CodegenError:
                self.counter = start
                raise
            break
        for name, used in widths.items():
            self.widths.setdefault(name, set()).update(used)
        for line in trial.text().splitlines():
            out.line(line.removeprefix("    " * 3))

    def _write_sweep(
        self,
        out: Writer,
        roots: Sequence[Root],
        level: int,
        shape: tuple[int, ...],
        splits: list[int],
        widths: dict[str, set[int]],
    ) -> None:
        reductions = [r for r in roots if r.accumulator is not None]
        plan = [(s, lanes, count) for a, b in itertools.pairwise(splits) for s, lanes, count in _steps(a, b)]
        for root in reductions:
            assert root.accumulator is not None
            widths[root.accumulator.name] = {lanes for _, lanes, _ in plan}
            root.accumulator.widths = sorted(widths[root.accumulator.name], reverse=True)
        outer = [Var(f"a{i}_{level}", d) for i, d in enumerate(shape[:-1])]
        with ExitStack() as loops:
            for var in outer:
                loops.enter_context(out.block(f"for {var.name} in range({var.extent}):"))
            for root in reductions:
                assert root.accumulator is not None
                root.accumulator.reset(out)
            prefix = tuple(Affine.of(v) for v in outer)
            for start, lanes, count in plan:
                for last, body in _loop(out, start, lanes, count):
                    evaluator = self._evaluator(body, level)
                    for root in roots:
                        self._at(evaluator, root, shape, (*prefix, last), lanes)
                    self.counter = evaluator.counter
            for root in reductions:
                assert root.accumulator is not None
                total = root.accumulator.finish(out, shape[-1])
                if root.value.type.dtype is DType.BF16:
                    total = call("inf_round_bf16", 1, total)
                out.line(f"{self.reductions[root.value]}[{flatten(prefix, shape[:-1]).text()}] = {total}")

    def _at(self, e: Evaluator, root: Root, shape: tuple[int, ...], index: Index, lanes: int) -> None:
        """Compute a root at one place of the sweep and accumulate or store it."""
        swept = root.swept
        own = static_shape(swept.type, self.row)
        if not own:
            index = ()
        elif own != shape:
            index = unflatten(flatten(index, shape), own, lanes - 1)
        value = e.value(swept, "row", index, lanes)
        if root.accumulator is not None:
            root.accumulator.update(e.out, value, lanes, index[-1].text())
        elif root.value.op == "kv.write":
            self._write_cache(e, root.value.node, value, index, lanes)
        else:
            size = math.prod(own)
            at = f"row * {size} + {flatten(index, own).text()}" if own else "row"
            e.out.line(f"w{root.output}[{ramp(at, lanes)}] = {_stored(value, root.value.type.dtype, lanes)}")

    def _prefetch_cache(self, out: Writer, node: Node) -> None:
        """Ask for the cache lines that a row's keys or values go to while the row is being computed.

        A row of keys touches a line per channel pair, all of them far from each other and, in decoding, out of the
        caches: stores alone would wait for one after the other.
        """
        cache, x, slots = node.operands
        heads, width = static_shape(x.type, self.row)
        bs, pack = node.attrs["block_size"], 2 if x.type.dtype is DType.BF16 else 1
        evaluator = self._evaluator(out, 0)
        slot = evaluator.value(slots, "row", (), 1)
        self.counter = evaluator.counter
        page = f"(({slot} // {bs}) * {heads} + head) * {width * bs}"
        if node.attrs["role"] == "k":
            lines, where = width // pack, f"{page} // {pack} + line * {bs} + {slot} % {bs}"
        else:
            per_line = 64 // x.type.dtype.itemsize
            lines = -(-width * pack // per_line)
            where = f"{page} + {slot} % {bs} // {pack} * {width * pack} + line * {per_line}"
        with out.block(f"for head in range({heads}):"), out.block(f"for line in range({lines}):"):
            out.line(f"T.evaluate({sync('inf_prefetch', f'T.address_of({self.memory[cache]}[{where}])')})")

    def _write_cache(self, e: Evaluator, node: Node, value: str, index: Index, lanes: int) -> None:
        """Store a piece of a key or value row in the layout of `kv.cache_type`."""
        cache, x, slots = node.operands
        heads, width = static_shape(x.type, self.row)
        bs, buffer = node.attrs["block_size"], self.memory[cache]
        slot = e.value(slots, "row", (), 1)
        head, channel = index[0].text(), index[1]
        block, offset = f"({slot} // {bs})", f"({slot} % {bs})"
        page = f"({block} * {heads} + {head}) * {width * bs}"
        if node.attrs["role"] == "v":
            pack = 2 if x.type.dtype is DType.BF16 else 1
            base = f"{page} + {offset} // {pack} * {width * pack} + ({channel.text()}) * {pack} + {offset} % {pack}"
            where = base if lanes == 1 else f"T.ramp({base}, {pack}, {lanes})"
            e.out.line(f"{buffer}[{where}] = {_stored(value, x.type.dtype, lanes)}")
        elif x.type.dtype is DType.BF16:
            if lanes < 2 or channel.offset % 2:
                raise CodegenError(f"keys of width {width} do not fall into pairs")
            pairs = lanes // 2
            half = f"({channel.text()}) // 2"
            base = f"{page} // 2 + {half} * {bs} + {offset}"
            words = f'T.reinterpret("int32{f"x{pairs}" if pairs > 1 else ""}", {_stored(value, DType.BF16, lanes)})'
            where = base if pairs == 1 else f"T.ramp({base}, {bs}, {pairs})"
            e.out.line(f"{buffer}[{where}] = {words}")
        else:
            base = f"{page} + ({channel.text()}) * {bs} + {offset}"
            where = base if lanes == 1 else f"T.ramp({base}, {bs}, {lanes})"
            e.out.line(f"{buffer}[{where}] = {value}")


def _stored(value: str, dtype: DType, lanes: int) -> str:
    return call("inf_f32_to_bf16", lanes, value) if dtype is DType.BF16 else value


def _steps(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(start, lanes, repetitions) that cover [start, stop): full vectors, then power-of-two tails."""
    full = (stop - start) // LANES
    if full:
        yield start, LANES, full
    for offset, lanes in pieces(stop - start - full * LANES):
        yield start + full * LANES + offset, lanes, 1


def _loop(out: Writer, start: int, lanes: int, count: int) -> Iterator[tuple[Affine, Writer]]:
    """The last-axis index of a step of a sweep, inside a loop where it repeats."""
    if count == 1:
        yield Affine(offset=start), out
        return
    var = Var("j", count)
    with out.block(f"for {var.name} in range({count}):"):
        yield Affine(((var, lanes),), start), out
