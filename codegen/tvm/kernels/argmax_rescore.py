"""Exact products with the few blocks that bounds leave, and the first maximum among them."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.argmax_parts import LANES, ArgmaxShape, entry, parameters, upper
from inferir.codegen.tvm.kernels.matmul import call_tile
from inferir.codegen.tvm.kernels.microkernel import tile_function
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.source import PrivateFunction, TaskKernel, Writer, f32, pieces
from inferir.ir.weight_blocks import BLOCK

TRIES = 4  # blocks that a floor is made of, at most
_FOUND = (("floats_b", "best"), ("words_b", "index"))  # where maxima and their outputs are


def _score(w: Writer, s: ArgmaxShape, features: frozenset[str], best: str, index: str) -> PrivateFunction:
    """The exact product of `row` and `block`; `best` and `index` become its first maximum if that comes before them."""
    steps = s.k // s.exact.together
    vectors = s.exact.tile_vectors(1, features)
    tile = tile_function(s.exact, 1, vectors)
    weights = [f"{part.name}_b" for part in s.exact.parts]
    call_tile(w, s.exact, tile, vectors, f"x_b[row * {steps}]", weights, "SCRATCH[{}]", steps, steps)
    columns = f"for c in range(T.min({BLOCK}, {s.valid} - block * {BLOCK})):"
    with w.block(columns), w.block(f"if {_before('SCRATCH[c]', f'block * {BLOCK} + c', best, index)}:"):
        w.line(f"{best} = SCRATCH[c]")
        w.line(f"{index} = block * {BLOCK} + c")
    return tile


def _before(value: str, output: str, best: str, index: str) -> str:
    """Whether a value comes before the best so far, where an output of -1 and -inf stand for none."""
    return f"T.Or({value} > {best}, T.And({value} == {best}, {output} < {index}))"


def find_floor(name: str, s: ArgmaxShape, features: frozenset[str]) -> TaskKernel:
    """A task is a row. The blocks of the largest upper bounds are rescored, `TRIES` at most, while they reach the
    floor; their upper bounds become -inf.
    """
    at, symbol = s.layout(), f"{name}_floor"
    best, index = (f"{buffer}[{at[part]} + {s.ranges * s.rows} + row]" for buffer, part in _FOUND)
    floor, lowest = f"floats_b[{at['floor']} + row]", f32(float("-inf"))
    top = Accumulator("top", "argmax")
    w = Writer()
    with entry(w, symbol, s, "x", *(part.name for part in s.exact.parts), "words", "floats"):
        tail = [(s.blocks // LANES * LANES + at_, n) for at_, n in pieces(s.blocks % LANES)]
        top.declare(w, [LANES, *(n for _, n in tail)])
        w.line("row: T.let[T.int32] = task")
        w.line(f"size: T.let[T.float32] = floats_b[{at['size']} + row]")
        w.line(f"shift: T.let[T.float32] = floats_b[{at['shift']} + row]")
        w.line(f"{best} = {lowest}")
        w.line(f"{index} = -1")
        w.line(f"{floor} = {lowest}")
        with w.block(f"for i in range({TRIES}):"):
            top.reset(w)
            with w.block(f"for j in range({s.blocks // LANES}):"):
                top.update(w, upper(s, f"j * {LANES}", LANES), LANES, f"j * {LANES}")
            for start, lanes in tail:
                top.update(w, upper(s, str(start), lanes), lanes, str(start))
            chosen = top.finish(w, s.blocks)
            with w.block(f"if T.And({chosen} < {s.blocks}, top_best[0] >= {floor}):"):
                w.line(f"block: T.let[T.int32] = {chosen}")
                tile = _score(w, s, features, best, index)
                w.line(f"{upper(s)} = {lowest}")
                w.line(f"found: T.let[T.float32] = {best}")
                rounding = f"(T.abs(found) + T.abs(shift)) * {f32(2.0**-22)} + floats_b[{at['slack']} + row]"
                w.line(f"exact: T.let[T.float32] = found - shift - ({rounding})")
                usual = f"T.And(T.And(size > {f32(1e-10)}, size < {f32(1e18)}), T.abs(exact) < {f32(1e36)})"
                w.line(f"{floor} = T.Select({usual}, exact, {lowest})")
    return TaskKernel(symbol, parameters(s.dtype), w.text(), "n_g", BLOCK * 4, (tile,))


def rescore(name: str, s: ArgmaxShape, features: frozenset[str]) -> TaskKernel:
    """A task is a range of blocks."""
    at, symbol = s.layout(), f"{name}_rescore"
    best, index = (f"{buffer}[{at[part]} + task * {s.rows} + row]" for buffer, part in _FOUND)
    w = Writer()
    with entry(w, symbol, s, "x", *(part.name for part in s.exact.parts), "words", "floats"):
        w.line(f"first_block: T.let[T.int32] = task * {s.blocks_per_range}")
        with w.block("for row in range(n_g):"):
            w.line(f"{best} = {f32(float('-inf'))}")
            w.line(f"{index} = -1")
        with w.block(f"for i in range(T.min({s.blocks_per_range}, {s.blocks} - first_block)):"):
            w.line("block: T.let[T.int32] = first_block + i")
            with w.block("for row in range(n_g):"):
                w.line(f"floor: T.let[T.float32] = floats_b[{at['floor']} + row]")
                w.line(f"upper: T.let[T.float32] = {upper(s)}")
                # The bounds of a row without a floor may be NaN, and its blocks are rescored once more.
                with w.block(f"if T.Or(upper >= floor, floor == {f32(float('-inf'))}):"):
                    tile = _score(w, s, features, best, index)
    return TaskKernel(symbol, parameters(s.dtype), w.text(), f"T.min(n_g, 1) * {s.ranges}", BLOCK * 4, (tile,))


def pick(name: str, s: ArgmaxShape) -> TaskKernel:
    """One task."""
    at, symbol = s.layout(), f"{name}_pick"
    value, index = (f"{buffer}[{at[part]} + i * {s.rows} + row]" for buffer, part in _FOUND)
    w = Writer()
    with entry(w, symbol, s, "out", "words", "floats"):
        w.line('best = T.alloc_buffer((1,), "float32")')
        w.line('first = T.alloc_buffer((1,), "int32")')
        with w.block("for row in range(n_g):"):
            w.line(f"best[0] = {f32(float('-inf'))}")
            w.line("first[0] = -1")
            better = _before(value, index, "best[0]", "first[0]")
            with w.block(f"for i in range({s.ranges + 1}):"), w.block(f"if {better}:"):
                w.line(f"best[0] = {value}")
                w.line(f"first[0] = {index}")
            w.line("out_b[row] = first[0]")
    return TaskKernel(symbol, parameters(s.dtype), w.text(), "T.min(n_g, 1)")
