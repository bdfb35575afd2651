"""Sweeps over the elements of one row: every root that visits the same shape is computed in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod

from inferir.codegen.lower.cache_write import CacheWrite
from inferir.codegen.lower.emitter import Place
from inferir.codegen.lower.evaluate import SplitNeededError
from inferir.codegen.lower.index import Index, Var, flatten, unflatten
from inferir.codegen.lower.rows import Root, static_shape, stores
from inferir.codegen.tvm.emitter import TvmEmitter, stored
from inferir.codegen.tvm.kernels import kv_write
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Writer, pieces, ramp
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Value

LANES = 16

Shape = tuple[int, ...]


@dataclass
class Reduction:
    """Accumulators of a reduction and the buffer that holds its results, one for every place that it keeps."""

    accumulator: Accumulator
    buffer: str
    kept: Shape
    dtype: DType
    widths: set[int] = field(default_factory=set)

    @property
    def kind(self) -> str:
        return "int32" if self.dtype is DType.I32 else "float32"

    def declare(self, out: Writer) -> None:
        self.accumulator.declare(out, sorted(self.widths))
        out.line(f'{self.buffer} = T.alloc_buffer(({prod(self.kept)},), "{self.kind}")')


@dataclass
class RowSweeps:
    """Writes the sweeps of a row.

    memory: buffers of operands; later: results that are loaded from level n on; names: numbers that are free.
    """

    row: Dim
    memory: dict[Value, str]
    reductions: dict[Value, Reduction]
    later: dict[Value, tuple[int, str]] = field(default_factory=dict)
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def emitter(self, out: Writer, level: int, *, scattered: bool = False) -> TvmEmitter:
        """For a scope of a sweep of `level`."""
        memory = self.memory | {v: buffer for v, (at, buffer) in self.later.items() if at <= level}
        return TvmEmitter(self.row, memory, out, self._reduced, self.names, scattered=scattered)

    def _reduced(self, e: TvmEmitter, v: Value, place: Place) -> str | None:
        if v not in self.reductions or place.lanes > 1:
            return None
        reduction = self.reductions[v]
        return e.let(
            f"{reduction.buffer}[{flatten(place.index, static_shape(v.type, self.row)).text()}]", reduction.kind
        )

    def group(self, out: Writer, roots: Sequence[Root], level: int, shapes: Mapping[Root, Sequence[Shape]]) -> None:
        """One sweep for several roots, in the first shape of each; where that does not suit all of them, one each."""
        first, *others = shapes[roots[0]]
        try:
            return self._sweep(out, roots, level, first)
        except CodegenError as error:
            problem = error
        if len(roots) > 1:
            for root in roots:
                self.group(out, [root], level, shapes)
            return None
        for shape, lanes in [*((s, LANES) for s in others), *((s, 1) for s in (first, *others))]:
            try:
                return self._sweep(out, roots, level, shape, lanes)
            except CodegenError:  # the first shape's problem says most
                continue
        raise problem from None

    def _sweep(self, out: Writer, roots: Sequence[Root], level: int, shape: Shape, widest: int = LANES) -> None:
        """Write a sweep, cut wherever a concatenation is, in vectors of up to `widest` neighbours."""
        splits = {0, shape[-1]}
        while True:
            trial = Writer()
            plan = [step for a, b in itertools.pairwise(sorted(splits)) for step in _steps(a, b, widest)]
            try:
                self._write(trial, roots, level, shape, plan, scattered=widest == 1)
                break
            except SplitNeededError as need:
                if not 0 < need.after < shape[-1] or need.after in splits:
                    raise CodegenError(f"a concatenation is cut at {need.after} of {shape}") from None
                splits.add(need.after)
        for root in roots:
            if root.output is None:
                self.reductions[root.value].widths.update(lanes for _, lanes, _ in plan)
        out.lines(trial.text().splitlines())

    def _write(
        self,
        out: Writer,
        roots: Sequence[Root],
        level: int,
        shape: Shape,
        plan: Sequence[tuple[int, int, int]],
        *,
        scattered: bool,
    ) -> None:
        reductions = [self.reductions[r.value] for r in roots if r.output is None]
        for reduction in reductions:
            reduction.accumulator.widths = sorted({lanes for _, lanes, _ in plan}, reverse=True)
        outer = [Var(f"a{i}_{level}", d) for i, d in enumerate(shape[:-1])]
        prefix = tuple(Index.of(v) for v in outer)
        with ExitStack() as loops:
            for var in outer:
                loops.enter_context(out.block(f"for {var.name} in range({var.extent}):"))
            for reduction in reductions:
                reduction.accumulator.reset(out)
            for start, lanes, count in plan:
                for last in _loop(out, start, lanes, count):
                    emitter = self.emitter(out, level, scattered=scattered)
                    for root in roots:
                        try:
                            self._at(emitter, root, shape, (*prefix, last), lanes)
                        except SplitNeededError as need:
                            raise SplitNeededError(start + need.after) from None
            for reduction in reductions:
                total = reduction.accumulator.finish(out, shape[-1])
                if reduction.dtype is DType.BF16:
                    total = call("inf_round_bf16", 1, total)
                out.line(f"{reduction.buffer}[{flatten(prefix, shape[:-1]).text()}] = {total}")

    def _at(self, e: TvmEmitter, root: Root, shape: Shape, index: tuple[Index, ...], lanes: int) -> None:
        """Compute a root at one place of the sweep and accumulate or store it."""
        own = static_shape(root.swept.type, self.row)
        if not own:
            index = ()
        elif own != shape:
            index = unflatten(flatten(index, shape), own, e.span(Place(index, lanes)))
        value = e.value(root.swept, index, lanes)
        if root.output is None:
            self.reductions[root.value].accumulator.update(e.out, value, lanes, index[-1].text())
        elif stores(root.value):
            kv_write.store(e, CacheWrite.of(root.value, self.row), value, index, lanes)
        else:
            at = f"row * {prod(own)} + {flatten(index, own).text()}" if own else "row"
            e.out.line(f"w{root.output}[{ramp(at, lanes)}] = {stored(value, root.value.type.dtype, lanes)}")


def _steps(start: int, stop: int, widest: int) -> Iterator[tuple[int, int, int]]:
    """(start, lanes, repetitions) that cover [start, stop): full vectors, then power-of-two tails."""
    full = (stop - start) // widest
    if full:
        yield start, widest, full
    for offset, lanes in pieces(stop - start - full * widest):
        yield start + full * widest + offset, lanes, 1


def _loop(out: Writer, start: int, lanes: int, count: int) -> Iterator[Index]:
    """The last-axis index of a step of a sweep, inside a loop where it repeats."""
    if count == 1:
        yield Index(offset=start)
        return
    with out.block(f"for j in range({count}):"):
        yield Index.of(Var("j", count), lanes) + start
