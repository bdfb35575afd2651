"""Text of `sample.draw`: arg-max of a row of logits, with Gumbel noise where the temperature is positive."""

from __future__ import annotations

from inferir.codegen.tvm.affine import Affine, Var
from inferir.codegen.tvm.evaluate import Evaluator
from inferir.codegen.tvm.llvm_lib import call
from inferir.codegen.tvm.reduce import Accumulator
from inferir.codegen.tvm.source import Writer, f32, ramp, splat, vtype
from inferir.ir.errors import CodegenError
from inferir.ir.graph import Node

LANES = 16


def _u32(value: int, lanes: int) -> str:
    return splat(f"T.uint32({value})", lanes)


def _mix(e: Evaluator, x: str, lanes: int) -> str:
    """The 32-bit finaliser of `ir.ops.sample.mix32`."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        x = e.let(f"T.bitwise_xor({x}, T.shift_right({x}, {_u32(shift, lanes)}))", "uint32", lanes)
        if factor is not None:
            x = e.let(f"{x} * {_u32(factor, lanes)}", "uint32", lanes)
    return x


def _key(e: Evaluator, seed: str, counter: str) -> str:
    """mix(seed ^ mix(counter + odd constant)), in every lane: TVM's scalar simplifier does not wrap unsigned sums."""
    s, c = (e.let(f'T.Cast("uint32x{LANES}", {splat(v, LANES)})', "uint32", LANES) for v in (seed, counter))
    turn = e.let(f"{c} + {_u32(0x9E3779B9, LANES)}", "uint32", LANES)
    return _mix(e, e.let(f"T.bitwise_xor({s}, {_mix(e, turn, LANES)})", "uint32", LANES), LANES)


def _gumbel(e: Evaluator, key: str, position: str, lanes: int) -> str:
    """-log(-log u) with u uniform in (0, 1) from (key, position)."""
    index = e.let(f'T.Cast("{vtype("uint32", lanes)}", {ramp(position, lanes)}) + {_u32(1, lanes)}', "uint32", lanes)
    bits = _mix(e, e.let(f"T.bitwise_xor({key}, {_mix(e, index, lanes)})", "uint32", lanes), lanes)
    real = e.let(f'T.Cast("{vtype("float32", lanes)}", T.shift_right({bits}, {_u32(10, lanes)}))', "float32", lanes)
    u = e.let(f"({real} + {f32(0.5, lanes)}) * {f32(1.0 / 4194304.0, lanes)}", "float32", lanes)
    inner = e.let(f"{f32(0.0, lanes)} - {call('inf_log', lanes, u)}", "float32", lanes)
    return e.let(f"{f32(0.0, lanes)} - {call('inf_log', lanes, inner)}", "float32", lanes)


def write_draw(out: Writer, node: Node, e: Evaluator, target: str) -> int:
    """Write the statements that store the drawn token of the current `row` to `target`. Returns the name counter."""
    logits, temperature, seed, counter = node.operands
    valid = node.attrs["valid"]
    if valid < LANES:
        raise CodegenError(f"sample.draw: a vocabulary of {valid} entries is smaller than a vector of {LANES}")
    full = valid // LANES
    steps = [(0, LANES, full)]
    if valid % LANES:
        steps.append((valid - LANES, LANES, 1))  # overlaps: seeing an entry twice does not change an arg-max
    best = Accumulator("draw", "argmax")
    best.declare(out, [lanes for _, lanes, _ in steps])
    best.declare_result(out)
    best.reset(out)
    heat = e.value(temperature, "row", (), 1)
    names = e.counter
    for hot in (True, False):
        with out.block(f"if {heat} > T.float32(0.0):" if hot else "else:"):
            scope = e.fork(out)
            scope.counter = names
            key = ""
            if hot:
                key = _key(scope, scope.value(seed, "row", (), 1), scope.value(counter, "row", (), 1))
            for start, lanes, count in steps:
                var = Var("jd", count)
                index = Affine(((var, lanes),), start) if count > 1 else Affine(offset=start)
                head = f"for jd in range({count}):" if count > 1 else "for jd in range(1):"
                with out.block(head):
                    step = scope.fork(out)
                    step.counter = names = scope.counter
                    value = step.value(logits, "row", (index,), lanes)
                    if hot:
                        noise = _gumbel(step, key, index.text(), lanes)
                        value = step.let(f"{value} / {splat(heat, lanes)} + {noise}", "float32", lanes)
                    best.update(out, value, lanes, index.text())
                    scope.counter = step.counter
            names = scope.counter
    out.line(f"{target}[row] = {best.finish(out, valid)}")
    return names
