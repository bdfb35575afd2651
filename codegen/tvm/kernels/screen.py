"""`sample.greedy`: the most likely token of each row, without most of the last matrix.

Five kernels, run one after another over memory that they share:

1. prepare: every row as integers n of two bytes, low + 256 * high, scaled so that few are above one byte; per tile of
   rows the list of steps with high bytes.
2. screen: products of weights in bytes (`layout.screen_weight`) with low bytes, and with high bytes for the steps of
   the list; per row and block of 64 outputs the largest upper bound of a logit.
3. floor: per row the exact products, in the arithmetic of `matmul.py`, with the few blocks that have the largest upper
   bounds. No output whose upper bound is below what is found there can be the maximum.
4. rescore: the exact product of a row and a block where the block's upper bound reaches the row's floor; per row and
   range of blocks the first maximum.
5. pick: the first maximum of all.

What is read is a byte per weight and the few blocks that are rescored, and the token is that of the full product bit
for bit, since bounds only decide what is left out. They hold for any finite row; of a row with an infinity or NaN in
it, or close to zero throughout, every block is rescored.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.tvm.kernels.kv_prefetch import list_bytes
from inferir.codegen.tvm.kernels.matmul import CHUNK_BYTES, CHUNKS, Lists, call_tile
from inferir.codegen.tvm.kernels.microkernel import BLOCK, MEMORY, micro_kernel, reread_rows, tall_rows, tile_vectors
from inferir.codegen.tvm.kernels.reduce import Accumulator
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.llvm.llvm_math import MAGIC, MAGIC_BITS
from inferir.codegen.tvm.source import (
    ChunkKernel,
    Param,
    PrivateFunction,
    Stream,
    Writer,
    entry_head,
    f32,
    i32,
    pieces,
    ramp,
    splat,
)
from inferir.ir.errors import CodegenError

LANES = 16
TRIES = 4  # blocks that a floor is made of, at most
RANGES = 32  # parts of the outputs whose maxima are found apart
_MOST = 32512  # the largest integer of two signed bytes, low + 256 * high
_FOUND = (("floats_b", "best"), ("words_b", "index"))  # where maxima and their outputs are
_PER_ROW = ("scale", "size", "rest", "shift", "slack", "floor")  # floats


@dataclass(frozen=True)
class ScreenShape:
    """Sizes of one bucket's kernels: x [up to `rows`, `k`] in `dtype` ("bf16" or "f32"), `n` outputs, `valid` of them
    wanted.

    height: rows of a tile.
    """

    k: int
    n: int
    valid: int
    dtype: str
    rows: int
    height: int

    @property
    def blocks(self) -> int:
        return -(-self.n // BLOCK)

    @property
    def tiles(self) -> int:
        return -(-self.rows // self.height)

    @property
    def blocks_per_range(self) -> int:
        return -(-self.blocks // RANGES)

    @property
    def ranges(self) -> int:
        return -(-self.blocks // self.blocks_per_range)

    @property
    def group(self) -> int:
        """Blocks that are screened at a time."""
        block_bytes = self.k * BLOCK
        return 1 if self.tiles > 1 else max(1, min(CHUNK_BYTES // block_bytes, self.blocks // CHUNKS))

    @property
    def resolution(self) -> float:
        """What 127 stands for, in root mean squares of the row: less leaves fewer blocks to rescore and has more steps
        with high bytes.
        """
        return 0.25 if self.paired else 3.0

    @property
    def paired(self) -> bool:
        """Whether low and high bytes are two rows of one tile: for a single row, where memory is the limit."""
        return self.rows == 1

    def layout(self) -> dict[str, int]:
        """Offsets of the parts of the workspace in units of four bytes, and its size as `end`."""
        words = self.k // 4
        sizes = {
            "split": self.rows * 2 * words,  # low bytes of a row, then its high bytes
            "list": self.tiles * (words + 1),  # the count comes first
            "sum": self.rows,
            **dict.fromkeys(_PER_ROW, self.rows),
            "upper": self.rows * self.blocks,
            "best": (self.ranges + 1) * self.rows,  # the last ones are those that the floor was found with
            "index": (self.ranges + 1) * self.rows,
        }
        out, at = {}, 0
        for name, size in sizes.items():
            out[name] = at
            at += -(-size // LANES) * LANES
        return {**out, "end": at}


def screen_shape(k: int, n: int, valid: int, dtype: str, rows: int, features: frozenset[str]) -> ScreenShape:
    """Raises `CodegenError` for sizes that have no kernel."""
    if k % LANES:
        raise CodegenError(f"screening needs rows of a multiple of {LANES} elements, not {k}")
    return ScreenShape(k, n, valid, dtype, rows, min(rows, tall_rows("u8", features)))


def parameters(dtype: str) -> tuple[Param, ...]:
    """Parameters of all five kernels: x twice, in steps of the product and in elements, its weights, the results of
    `layout.screen_weight`, the tokens, and the workspace three times, by element type.
    """
    kind = MEMORY[dtype]
    return (
        Param("x", kind),
        Param("values", "uint16" if dtype == "bf16" else "float32"),
        Param("w", kind),
        Param("screen", "int32"),
        Param("bounds", "float32"),
        Param("columns", "float32"),
        Param("out", "int32"),
        Param("bytes", "int8"),
        Param("words", "int32"),
        Param("floats", "float32"),
    )


def screen_kernels(name: str, s: ScreenShape, features: frozenset[str]) -> tuple[ChunkKernel, ...]:
    """The kernels of one `sample.greedy`, to be run in this order. `features` are LLVM feature names."""
    return (
        _prepare(name, s),
        _screen(name, s, features),
        _floor(name, s, features),
        _rescore(name, s, features),
        _pick(name, s),
    )


def _kernel(
    name: str,
    s: ScreenShape,
    w: Writer,
    chunks: str,
    scratch: int = 0,
    shared: tuple[PrivateFunction, ...] = (),
    stream: Stream | None = None,
    *,
    upward: bool = False,
) -> ChunkKernel:
    return ChunkKernel(name, parameters(s.dtype), w.text(), chunks, scratch, shared, stream, upward=upward)


def _entry(w: Writer, name: str, s: ScreenShape) -> str:
    """The head of an entry, without what follows the colon."""
    w.line("@T.prim_func(private=True)")
    return entry_head(name, parameters(s.dtype))


def _buffers(w: Writer, s: ScreenShape, *names: str) -> None:
    """Flat buffers NAME_b over the parameters named, and SCRATCH."""
    kinds = {p.name: p.dtype for p in parameters(s.dtype)}
    for name in names:
        w.line(f'{name}_b = T.decl_buffer((1,), "{kinds[name]}", data={name})')
    w.line('SCRATCH = T.decl_buffer((1,), "float32", data=scratch)')


def _upper(s: ScreenShape) -> str:
    """Where the largest upper bound of `row` in `block` is."""
    return _uppers(s, "block", 1)


def _uppers(s: ScreenShape, block: str, lanes: int) -> str:
    at = s.layout()["upper"]
    return f"floats_b[{ramp(f'{at} + row * {s.blocks} + {block}', lanes)}]"


def _prepare(name: str, s: ScreenShape) -> ChunkKernel:
    """A chunk is a tile of rows. Scratch memory holds the largest size of each element of the tile."""
    at, entry = s.layout(), f"{name}_prepare"
    words = s.k // 4
    top, squares, rest = Accumulator("top", "max"), Accumulator("squares", "sum"), Accumulator("rest", "sum")
    shift, mass = Accumulator("shift", "sum"), Accumulator("mass", "sum")
    w = Writer()
    with w.block(_entry(w, entry, s)):
        _buffers(w, s, "values", "columns", "bytes", "words", "floats")
        for accumulator in (top, squares, rest, shift, mass):
            accumulator.declare(w, [LANES])
        w.line(f'total = T.alloc_buffer(({LANES},), "int32")')
        w.line('count = T.alloc_buffer((1,), "int32")')
        w.line(f"first: T.let[T.int32] = chunk * {s.height}")
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
        w.line(f"list: T.let[T.int32] = {at['list']} + chunk * {words + 1}")
        with w.block(f"for step in range({words}):"):
            largest = "SCRATCH[step * 4]"
            for i in range(1, 4):
                largest = f"T.max({largest}, SCRATCH[step * 4 + {i}])"
            with w.block(f"if {largest} > T.float32(127.0):"):
                w.line("count[0] = count[0] + 1")
                w.line("words_b[list + count[0]] = step")
        w.line("words_b[list] = count[0]")
        w.line("return T.int32(0)")
    return _kernel(entry, s, w, f"T.truncdiv(n_g + {s.height - 1}, {s.height})", s.k * 4)


def _value(s: ScreenShape) -> str:
    """Elements j * 16 and on of `row`."""
    value = f"values_b[{ramp(f'row * {s.k} + j * {LANES}', LANES)}]"
    return call("inf_bf16_to_f32", LANES, value) if s.dtype == "bf16" else value


def _split(w: Writer, s: ScreenShape, at: dict[str, int], rest: Accumulator) -> None:
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


def _screen(name: str, s: ScreenShape, features: frozenset[str]) -> ChunkKernel:
    """A chunk is a group of blocks and all rows, in tiles that meet a block while it lies in the cache."""
    at, entry, steps = s.layout(), f"{name}_screen", s.k // 4
    heights = range(s.height, 0, -1)
    ahead = s.tiles > 1
    vectors = {rows: tile_vectors(rows, "u8", features) for rows in heights}
    dense = {rows: micro_kernel("u8", rows, vectors[rows], ahead) for rows in heights}
    listed = {rows: micro_kernel("u8", rows, vectors[rows], listed=True) for rows in heights if not s.paired}
    if s.paired:
        dense = {1: micro_kernel("u8", 2, vectors[1])}
    lists = Lists(2 * s.height * BLOCK) if ahead else None
    group = s.group
    w = Writer()
    w.lines(_bound(f"{entry}_bound", s, at).splitlines())
    with w.block(_entry(w, entry, s)):
        _buffers(w, s, "screen", "words")
        w.line(f"first_block: T.let[T.int32] = chunk * {group}")
        w.line(f"tiles: T.let[T.int32] = T.truncdiv(n_g + {s.height - 1}, {s.height})")
        with w.block(f"for i in range(T.min({group}, {s.blocks} - first_block)):"), w.block("for t in range(tiles):"):
            w.line("block: T.let[T.int32] = first_block + i")
            w.line(f"next_block: T.let[T.int32] = T.min(later * {group} + i, {s.blocks - 1})")
            w.line(f"row: T.let[T.int32] = t * {s.height}")
            w.line(f"height: T.let[T.int32] = T.min({s.height}, n_g - row)")
            w.line(f"list: T.let[T.int32] = {at['list']} + t * {steps + 1}")
            for rows in heights:
                with w.block(f"{'el' if rows < s.height else ''}if height == {rows}:"):
                    low, high = (f"words_b[{at['split'] + part} + row * {2 * steps}]" for part in (0, steps))
                    v, stride = vectors[rows], steps if s.paired else 2 * steps
                    call_tile(w, dense[rows].name, v, low, "screen_b", "SCRATCH[{}]", stride, steps, lists=lists)
                    if not s.paired:
                        acc = f"SCRATCH[{s.height * BLOCK} + {{}}]"
                        chosen = ("T.address_of(words_b[list + 1])", "words_b[list]")
                        call_tile(w, listed[rows].name, v, high, "screen_b", acc, stride, steps, chosen=chosen)
            w.line(f"T.evaluate(Mod.{entry}_bound(bounds, words, floats, scratch, row, height, block))")
        w.line("return T.int32(0)")
    chunks = f"T.min(n_g, 1) * {-(-s.blocks // group)}"
    stream = None if ahead and s.rows > reread_rows("u8", features) else Stream(3, group * steps * BLOCK * 4)
    shared = (*dense.values(), *listed.values())
    scratch = 2 * s.height * BLOCK * 4 + list_bytes(steps, None)
    return _kernel(entry, s, w, chunks, scratch, shared, stream, upward=not ahead)


def _bound(name: str, s: ScreenShape, at: dict[str, int]) -> str:
    """The private function from a tile's sums in scratch memory to bounds of a block."""
    w = Writer()
    w.line("@T.prim_func(private=True)")
    pointers = 'bounds: T.handle("float32"), words: T.handle("int32"), floats: T.handle("float32")'
    counts = "first: T.int32, height: T.int32, block: T.int32"
    with w.block(f'def {name}({pointers}, scratch: T.handle("float32"), {counts}) -> T.int32:'):
        _buffers(w, s, "bounds", "words", "floats")
        with w.block("for r in range(height):"):
            w.line("row: T.let[T.int32] = first + r")
            for part in ("scale", "size", "rest"):
                w.line(f"{part}: T.let = {splat(f'floats_b[{at[part]} + row]', LANES)}")
            excess = splat(f"words_b[{at['sum']} + row]", LANES)
            w.line(f"excess: T.let = {excess}")  # weights are stored with 128 added to them
            for v in range(BLOCK // LANES):
                low, high = (
                    f'T.reinterpret("int32x{LANES}", SCRATCH[{ramp(f"{start} + r * {BLOCK} + {v * LANES}", LANES)}])'
                    for start in (0, s.height * BLOCK)
                )
                w.line(f"sum{v}: T.let = {low} + T.shift_left({high}, {i32(8, LANES)}) - excess")
                scale, offset, error, norm = (
                    f"bounds_b[{ramp(f'block * {4 * BLOCK} + {row * BLOCK + v * LANES}', LANES)}]" for row in range(4)
                )
                real = f'T.Cast("float32x{LANES}", sum{v})'
                far = call("inf_fma", LANES, error, "size", call("inf_fma", LANES, norm, "rest", offset))
                w.line(f"upper{v}: T.let = {call('inf_fma', LANES, real, f'{scale} * scale', far)}")
            best = "upper0"
            for v in range(1, BLOCK // LANES):
                best = call("inf_vmax", LANES, best, f"upper{v}")
            w.line(f"{_upper(s)} = {call('inf_hmax', LANES, best)}")
        w.line("return T.int32(0)")
    return w.text()


def _score(w: Writer, s: ScreenShape, features: frozenset[str], best: str, index: str) -> PrivateFunction:
    """The exact product of `row` and `block`; `best` and `index` become its first maximum if that comes before them."""
    steps = s.k // (2 if s.dtype == "bf16" else 1)
    vectors = tile_vectors(1, s.dtype, features)
    tile = micro_kernel(s.dtype, 1, vectors)
    call_tile(w, tile.name, vectors, f"x_b[row * {steps}]", "w_b", "SCRATCH[{}]", steps, steps)
    columns = f"for c in range(T.min({BLOCK}, {s.valid} - block * {BLOCK})):"
    with w.block(columns), w.block(f"if {_before('SCRATCH[c]', f'block * {BLOCK} + c', best, index)}:"):
        w.line(f"{best} = SCRATCH[c]")
        w.line(f"{index} = block * {BLOCK} + c")
    return tile


def _before(value: str, output: str, best: str, index: str) -> str:
    """Whether a value comes before the best so far, where an output of -1 and -inf stand for none."""
    return f"T.Or({value} > {best}, T.And({value} == {best}, {output} < {index}))"


def _floor(name: str, s: ScreenShape, features: frozenset[str]) -> ChunkKernel:
    """A chunk is a row. The blocks of the largest upper bounds are rescored, `TRIES` at most, while they reach the
    floor; their upper bounds become -inf.
    """
    at, entry = s.layout(), f"{name}_floor"
    best, index = (f"{buffer}[{at[part]} + {s.ranges * s.rows} + row]" for buffer, part in _FOUND)
    floor, lowest = f"floats_b[{at['floor']} + row]", f32(float("-inf"))
    top = Accumulator("top", "argmax")
    w = Writer()
    with w.block(_entry(w, entry, s)):
        _buffers(w, s, "x", "w", "words", "floats")
        tail = [(s.blocks // LANES * LANES + at_, n) for at_, n in pieces(s.blocks % LANES)]
        top.declare(w, [LANES, *(n for _, n in tail)])
        top.declare_result(w)
        w.line("row: T.let[T.int32] = chunk")
        w.line(f"size: T.let[T.float32] = floats_b[{at['size']} + row]")
        w.line(f"shift: T.let[T.float32] = floats_b[{at['shift']} + row]")
        w.line(f"{best} = {lowest}")
        w.line(f"{index} = -1")
        w.line(f"{floor} = {lowest}")
        with w.block(f"for i in range({TRIES}):"):
            top.reset(w)
            with w.block(f"for j in range({s.blocks // LANES}):"):
                top.update(w, _uppers(s, f"j * {LANES}", LANES), LANES, f"j * {LANES}")
            for start, lanes in tail:
                top.update(w, _uppers(s, str(start), lanes), lanes, str(start))
            chosen = top.finish(w, s.blocks)
            with w.block(f"if T.And({chosen} < {s.blocks}, top_best[0] >= {floor}):"):
                w.line(f"block: T.let[T.int32] = {chosen}")
                tile = _score(w, s, features, best, index)
                w.line(f"{_upper(s)} = {lowest}")
                w.line(f"found: T.let[T.float32] = {best}")
                rounding = f"(T.abs(found) + T.abs(shift)) * {f32(2.0**-22)} + floats_b[{at['slack']} + row]"
                w.line(f"exact: T.let[T.float32] = found - shift - ({rounding})")
                usual = f"T.And(T.And(size > {f32(1e-10)}, size < {f32(1e18)}), T.abs(exact) < {f32(1e36)})"
                w.line(f"{floor} = T.Select({usual}, exact, {lowest})")
        w.line("return T.int32(0)")
    return _kernel(entry, s, w, "n_g", BLOCK * 4, (tile,))


def _rescore(name: str, s: ScreenShape, features: frozenset[str]) -> ChunkKernel:
    """A chunk is a range of blocks."""
    at, entry = s.layout(), f"{name}_rescore"
    best, index = (f"{buffer}[{at[part]} + chunk * {s.rows} + row]" for buffer, part in _FOUND)
    w = Writer()
    with w.block(_entry(w, entry, s)):
        _buffers(w, s, "x", "w", "words", "floats")
        w.line(f"first_block: T.let[T.int32] = chunk * {s.blocks_per_range}")
        with w.block("for row in range(n_g):"):
            w.line(f"{best} = {f32(float('-inf'))}")
            w.line(f"{index} = -1")
        with w.block(f"for i in range(T.min({s.blocks_per_range}, {s.blocks} - first_block)):"):
            w.line("block: T.let[T.int32] = first_block + i")
            with w.block("for row in range(n_g):"):
                w.line(f"floor: T.let[T.float32] = floats_b[{at['floor']} + row]")
                w.line(f"upper: T.let[T.float32] = {_upper(s)}")
                # The bounds of a row without a floor may be NaN, and its blocks are rescored once more.
                with w.block(f"if T.Or(upper >= floor, floor == {f32(float('-inf'))}):"):
                    tile = _score(w, s, features, best, index)
        w.line("return T.int32(0)")
    return _kernel(entry, s, w, f"T.min(n_g, 1) * {s.ranges}", BLOCK * 4, (tile,))


def _pick(name: str, s: ScreenShape) -> ChunkKernel:
    """One chunk."""
    at, entry = s.layout(), f"{name}_pick"
    value, index = (f"{buffer}[{at[part]} + i * {s.rows} + row]" for buffer, part in _FOUND)
    w = Writer()
    with w.block(_entry(w, entry, s)):
        _buffers(w, s, "out", "words", "floats")
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
        w.line("return T.int32(0)")
    return _kernel(entry, s, w, "T.min(n_g, 1)")
