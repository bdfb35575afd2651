"""Rows of x as integers of two bytes, and what bounds need to know of them."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.argmax_parts import LANES, ArgmaxShape, entry, parameters
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.llvm.llvm_math import MAGIC, MAGIC_BITS
from inferir.codegen.tvm.source import TaskKernel, Writer, f32, i32, ramp, splat

_MOST = 32512  # the largest integer of two signed bytes, low + 256 * high


def prepare(name: str, s: ArgmaxShape) -> TaskKernel:
    """A task is a tile of rows. Scratch memory holds the largest size of each element of the tile."""
    at, symbol = s.layout(), f"{name}_prepare"
    words = s.k // 4
    top, squares, rest = Accumulator("top", "max"), Accumulator("squares", "sum"), Accumulator("rest", "sum")
    shift, mass = Accumulator("shift", "sum"), Accumulator("mass", "sum")
    w = Writer()
    with entry(w, symbol, s, "values", "columns", "bytes", "words", "floats"):
        for accumulator in (top, squares, rest, shift, mass):
            accumulator.declare(w, [LANES])
        w.line(f'total = T.alloc_buffer(({LANES},), "int32")')
        w.line('count = T.alloc_buffer((1,), "int32")')
        w.line(f"first: T.let[T.int32] = task * {s.height}")
        with w.block(f"for j in range({s.k // LANES}):"):
            w.line(f"SCRATCH[{ramp(f'j * {LANES}', LANES)}] = {f32(0.0, LANES)}")
        with w.block(f"for r in range(T.min({s.height}, n_g - first)):"):
            w.line("row: T.let[T.int32] = first + r")
            for accumulator in (top, squares, shift, mass):
                accumulator.reset(w)
            with w.block(f"for j in range({s.k // LANES}):"):
                w.line(f"value: T.let = {_value(s)}")
                w.line(f"z: T.let = value * columns_b[{ramp(f'j * {LANES}', LANES)}]")
                w.line(f"common: T.let = value * columns_b[{ramp(f'{s.k} + j * {LANES}', LANES)}]")
                shift.update(w, "common", LANES, "0")
                mass.update(w, call("inf_abs", LANES, "common"), LANES, "0")
                top.update(w, call("inf_abs", LANES, "z"), LANES, "0")
                squares.update(w, "z * z", LANES, "0")
            square = squares.finish(w, s.k)
            w.line(f"square: T.let[T.float32] = {square}")
            # A tenth of a percent covers the rounding of these sums, whose order bounds do not depend on.
            slack = 1.0 + max(2.0**-10, s.k * 2.0**-22)
            w.line(f"size: T.let[T.float32] = T.sqrt(square) * {f32(slack)}")
            steps = f"T.sqrt(square * {f32(1.0 / s.k)}) * {f32(s.resolution / 127)}"
            w.line(f"scale: T.let[T.float32] = T.max({steps}, ({top.finish(w, s.k)}) * {f32(1.0 / _MOST)})")
            w.line("inverse: T.let[T.float32] = T.float32(1.0) / scale")
            rest.reset(w)
            w.line(f"total[{ramp('0', LANES)}] = {i32(0, LANES)}")
            with w.block(f"for j in range({s.k // LANES}):"):
                _split(w, s, at, rest)
            w.line(f"floats_b[{at['shift']} + row] = {shift.finish(w, s.k)}")
            w.line(f"floats_b[{at['slack']} + row] = ({mass.finish(w, s.k)}) * {f32((s.k + 4) * 2.0**-23)}")
            w.line(f"floats_b[{at['scale']} + row] = scale")
            w.line(f"floats_b[{at['size']} + row] = size")
            w.line(f"floats_b[{at['rest']} + row] = T.sqrt({rest.finish(w, s.k)}) * {f32(slack)}")
            w.line("count[0] = 0")
            with w.block(f"for lane in range({LANES}):"):
                w.line("count[0] = count[0] + total[lane]")
            w.line(f"words_b[{at['sum']} + row] = count[0] * 128")
        w.line("count[0] = 0")
        w.line(f"list: T.let[T.int32] = {at['list']} + task * {words + 1}")
        with w.block(f"for step in range({words}):"):
            largest = "SCRATCH[step * 4]"
            for i in range(1, 4):
                largest = f"T.max({largest}, SCRATCH[step * 4 + {i}])"
            with w.block(f"if {largest} > T.float32(127.0):"):
                w.line("count[0] = count[0] + 1")
                w.line("words_b[list + count[0]] = step")
        w.line("words_b[list] = count[0]")
    return TaskKernel(symbol, parameters(s.dtype), w.text(), f"T.truncdiv(n_g + {s.height - 1}, {s.height})", s.k * 4)


def _value(s: ArgmaxShape) -> str:
    """Elements j * 16 and on of `row`."""
    value = f"values_b[{ramp(f'row * {s.k} + j * {LANES}', LANES)}]"
    return call("inf_bf16_to_f32", LANES, value) if s.dtype == "bf16" else value


def _split(w: Writer, s: ArgmaxShape, at: dict[str, int], rest: Accumulator) -> None:
    """Write 16 elements as low and high bytes; take their sum, what the integers leave, and their sizes."""
    w.line(f"z: T.let = {_value(s)} * columns_b[{ramp(f'j * {LANES}', LANES)}]")
    w.line(f"moved: T.let = {call('inf_fma', LANES, 'z', splat('inverse', LANES), f32(MAGIC, LANES))}")
    w.line(f"whole: T.let = moved - {f32(MAGIC, LANES)}")
    w.line(f"left: T.let = {call('inf_fma', LANES, 'whole', splat('-scale', LANES), 'z')}")
    rest.update(w, "left * left", LANES, "0")
    w.line(f'n: T.let = T.reinterpret("int32x{LANES}", moved) - {i32(MAGIC_BITS, LANES)}')
    w.line(f"total[{ramp('0', LANES)}] = total[{ramp('0', LANES)}] + n")
    w.line(f"low: T.let = T.bitwise_and(n + {i32(128, LANES)}, {i32(255, LANES)}) - {i32(128, LANES)}")
    for part, value in enumerate(("low", f"T.shift_right(n - low, {i32(8, LANES)})")):
        place = ramp(f"{at['split'] * 4} + row * {2 * s.k} + {part * s.k} + j * {LANES}", LANES)
        w.line(f'bytes_b[{place}] = T.Cast("int8x{LANES}", {value})')
    seen = f"SCRATCH[{ramp(f'j * {LANES}', LANES)}]"
    w.line(f"{seen} = {call('inf_vmax', LANES, call('inf_abs', LANES, 'whole'), seen)}")
