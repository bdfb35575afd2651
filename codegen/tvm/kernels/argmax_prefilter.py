"""The product of rows and weights in bytes, and from it an upper bound of the logits of every block of outputs."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.argmax_parts import INT8, LANES, ArgmaxShape, entry, parameters, upper
from inferir.codegen.tvm.kernels.kv_prefetch import list_bytes
from inferir.codegen.tvm.kernels.matmul import Lists, call_tile
from inferir.codegen.tvm.kernels.microkernel import tile_function
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Stream, TaskKernel, Writer, function, i32, ramp, splat
from inferir.ir.weight_blocks import BLOCK


def prefilter(name: str, s: ArgmaxShape, features: frozenset[str]) -> TaskKernel:
    """A task is a group of blocks and all rows, in tiles that meet a block while it lies in the cache."""
    at, symbol, steps = s.layout(), f"{name}_prefilter", s.k // 4
    heights = range(s.height, 0, -1)
    ahead = s.tiles > 1
    vectors = {rows: INT8.tile_vectors(rows, features) for rows in heights}
    dense = {rows: tile_function(INT8, rows, vectors[rows], ahead) for rows in heights}
    listed = {rows: tile_function(INT8, rows, vectors[rows], listed=True) for rows in heights if not s.paired}
    if s.paired:
        dense = {1: tile_function(INT8, 2, vectors[1])}
    lists = Lists(2 * s.height * BLOCK) if ahead else None
    group = s.group
    w = Writer()
    w.lines(_bound(f"{symbol}_bound", s, at).splitlines())
    with entry(w, symbol, s, "quantized", "words"):
        w.line(f"first_block: T.let[T.int32] = task * {group}")
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
                    call_tile(w, INT8, dense[rows], v, low, ["quantized_b"], "SCRATCH[{}]", stride, steps, lists=lists)
                    if not s.paired:
                        acc = f"SCRATCH[{s.height * BLOCK} + {{}}]"
                        chosen = ("T.address_of(words_b[list + 1])", "words_b[list]")
                        call_tile(w, INT8, listed[rows], v, high, ["quantized_b"], acc, stride, steps, chosen=chosen)
            w.line(f"T.evaluate(Mod.{symbol}_bound(bounds, words, floats, scratch, row, height, block))")
    tasks = f"T.min(n_g, 1) * {-(-s.blocks // group)}"
    stream = None if ahead and s.rows > INT8.reread_rows(features) else Stream(3, group * steps * BLOCK * 4)
    shared = (*dense.values(), *listed.values())
    scratch = 2 * s.height * BLOCK * 4 + list_bytes(steps, None)
    return TaskKernel(symbol, parameters(s.dtype), w.text(), tasks, scratch, shared, stream, upward=not ahead)


def _bound(name: str, s: ArgmaxShape, at: dict[str, int]) -> str:
    """The private function from a tile's sums in scratch memory to bounds of a block."""
    w = Writer()
    kinds = {"bounds": "float32", "words": "int32", "floats": "float32"}
    pointers = {**{f"{p}_b": (p, kind) for p, kind in kinds.items()}, "SCRATCH": ("scratch", "float32")}
    with function(w, name, pointers, "first height block", noalias=False), w.block("for r in range(height):"):
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
        w.line(f"{upper(s)} = {call('inf_hmax', LANES, best)}")
    return w.text()
