"""Text of `sample.draw`: arg-max of a row of logits, with Gumbel noise where the temperature is positive."""

from __future__ import annotations

from collections.abc import Iterator

from inferir.codegen.lower.index import Index, Var
from inferir.codegen.tvm.emitter import TvmEmitter
from inferir.codegen.tvm.kernels import sample_filter
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.kernels.sample_filter import RowScratch
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Writer, f32, ramp, splat, vtype
from inferir.ir.contract import step_inputs
from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, mask_words
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Node

LANES = 16
NOTHING = 0x7FFFFFFF  # where an arg-max accumulator starts: no value was above -inf


def _u32(value: int, lanes: int) -> str:
    return splat(f"T.uint32({value})", lanes)


def _mix(e: TvmEmitter, x: str, lanes: int) -> str:
    """The 32-bit finaliser of `ir.ops.sample.mix32`."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        x = e.let(f"T.bitwise_xor({x}, T.shift_right({x}, {_u32(shift, lanes)}))", "uint32")
        if factor is not None:
            x = e.let(f"{x} * {_u32(factor, lanes)}", "uint32")
    return x


def _key(e: TvmEmitter, seed: str, counter: str) -> str:
    """mix(seed ^ mix(counter + odd constant)), in every lane: TVM's scalar simplifier does not wrap unsigned sums."""
    s, c = (e.let(f'T.Cast("uint32x{LANES}", {splat(v, LANES)})', "uint32") for v in (seed, counter))
    turn = e.let(f"{c} + {_u32(0x9E3779B9, LANES)}", "uint32")
    return _mix(e, e.let(f"T.bitwise_xor({s}, {_mix(e, turn, LANES)})", "uint32"), LANES)


def _gumbel(e: TvmEmitter, key: str, position: str, lanes: int) -> str:
    """-log(-log u) with u uniform in (0, 1) from (key, position)."""
    index = e.let(f'T.Cast("{vtype("uint32", lanes)}", {ramp(position, lanes)}) + {_u32(1, lanes)}', "uint32")
    bits = _mix(e, e.let(f"T.bitwise_xor({key}, {_mix(e, index, lanes)})", "uint32"), lanes)
    real = e.let(f'T.Cast("{vtype("float32", lanes)}", T.shift_right({bits}, {_u32(10, lanes)}))', "float32")
    u = e.let(f"({real} + {f32(0.5, lanes)}) * {f32(1.0 / 4194304.0, lanes)}", "float32")
    inner = e.let(f"{f32(0.0, lanes)} - {call('inf_log', lanes, u)}", "float32")
    return e.let(f"{f32(0.0, lanes)} - {call('inf_log', lanes, inner)}", "float32")


def write_sample(out: Writer, node: Node, e: TvmEmitter, target: str) -> None:
    """Write the statements that store the sampled token of the current `row` to `target`.

    A row without mask, edits and filters is drawn from where its logits lie; any other is copied to scratch memory
    first.
    """
    valid = node.attrs["valid"]
    if valid < LANES:
        raise CodegenError(f"sample.draw: a vocabulary of {valid} entries is smaller than a vector of {LANES}")
    _Sample(out, node, e, target, RowScratch(valid)).write()


def scratch_bytes(node: Node) -> int:
    """Scratch memory that the text of `write_sample` needs."""
    return RowScratch(node.attrs["valid"]).nbytes


class _Sample:
    def __init__(self, out: Writer, node: Node, e: TvmEmitter, target: str, scratch: RowScratch) -> None:
        self.out, self.e, self.target, self.scratch = out, e, target, scratch
        self.logits = node.operands[0]
        self.operands = {i.name: v for i, v in zip(SAMPLE_INPUTS, node.operands[1:], strict=True)}
        self.words = mask_words(int(self.logits.type.shape[1]))
        valid = scratch.valid
        self.steps = [(0, valid // LANES)]
        if valid % LANES:
            self.steps.append((valid - LANES, 1))  # overlaps: seeing an entry twice does not change an arg-max
        self.best = Accumulator("sample", "argmax")

    def write(self) -> None:
        out, best = self.out, self.best
        best.declare(out, [LANES])
        sample_filter.declare(out)
        best.reset(out)
        given = {i.name: self._scalar(i.name) for i in SAMPLE_INPUTS if i.writer is step_inputs.Writer.PARAMS}
        masked, edits = (self._scalar(name) for name in ("masked", "edit_count"))
        heat, filters = given["temperature"], sample_filter.limited(self.scratch, given)
        with out.block(f"if {masked} != 0 or {edits} > 0 or ({heat} > T.float32(0.0) and ({filters})):"):
            self._copy(masked, edits)
            with out.block(f"if {heat} > T.float32(0.0):"):
                sample_filter.scale(out, self.scratch, heat)
                sample_filter.threshold(out, self.scratch, given)
                self._sweep_scratch(hot=True)
            with out.block("else:"):
                self._sweep_scratch(hot=False)
        with out.block("else:"):
            with out.block(f"if {heat} > T.float32(0.0):"):
                self._sweep_row(heat)
            with out.block("else:"):
                self._sweep_row("")
        token = best.finish(out, self.scratch.valid)
        out.line(f"{self.target}[row] = T.Select({token} == {NOTHING}, T.int32(-1), {token})")

    def _scalar(self, name: str) -> str:
        return self.e.value(self.operands[name])

    def _buffer(self, name: str) -> str:
        value = self.operands[name]
        if value not in self.e.memory:
            raise CodegenError(f"sample.draw: operand {name} must lie in memory")
        return self.e.memory[value]

    def _copy(self, masked: str, edits: str) -> None:
        """Values of the row, masked and edited, in scratch memory."""
        out, at = self.out, self.scratch
        sample_filter.pad(out, at)
        for index, step in self._row_steps():
            out_value = step.value(self.logits, (index,), LANES)
            out.line(f"{at.at(0, index.text())} = {out_value}")
        with out.block(f"if {masked} != 0:"):
            sample_filter.mask(out, at, self._buffer("bitmask"), self.words)
        with out.block(f"if {edits} > 0:"):
            sample_filter.edit(out, at, {n: self._buffer(n) for n in self.operands if n.startswith("edit_")})

    def _row_steps(self) -> Iterator[tuple[Index, TvmEmitter]]:
        """The row in vectors, each inside its loop."""
        for start, count in self.steps:
            var = Var("jd", count)
            index = Index(((var, LANES),), start) if count > 1 else Index(offset=start)
            with self.out.block(f"for jd in range({count}):"):
                yield index, self.e.fork(self.out)

    def _noise_key(self) -> str:
        scope = self.e.fork(self.out)
        return _key(scope, *(scope.value(self.operands[name]) for name in ("seed", "counter")))

    def _sweep_row(self, heat: str) -> None:
        """Arg-max over the logits where they lie; with a temperature, over the perturbed ones."""
        key = self._noise_key() if heat else ""
        for index, step in self._row_steps():
            value = step.value(self.logits, (index,), LANES)
            if heat:
                noise = _gumbel(step, key, index.text(), LANES)
                value = step.let(f"{value} / {splat(heat, LANES)} + {noise}", "float32")
            self.best.update(self.out, value, LANES, index.text())

    def _sweep_scratch(self, hot: bool) -> None:
        """The same over the prepared row; vectors wholly below the threshold are skipped."""
        out, width = self.out, self.scratch.padded // LANES
        key = self._noise_key() if hot else ""
        with out.block(f"for jd in range({width}):"):
            step = self.e.fork(self.out)
            index = Index(((Var("jd", width), LANES),)) if width > 1 else Index()
            value = step.let(self.scratch.at(0, index.text()), "float32")
            if hot:
                with out.block(f"if {call('inf_hmax', LANES, value)} >= d_thr[0]:"):
                    noise = _gumbel(step, key, index.text(), LANES)
                    kept = f'T.Cast("float32x{LANES}", {value} >= {splat("d_thr[0]", LANES)})'
                    low = f32(float("-inf"), LANES)
                    value = step.let(call("inf_where", LANES, kept, f"{value} + {noise}", low), "float32")
                    self.best.update(out, value, LANES, index.text())
            else:
                self.best.update(out, value, LANES, index.text())
