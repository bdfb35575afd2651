"""Register-tiled inner products: private PrimFuncs shared by every matmul of a module.

`NAME(x, w, acc, x_stride, steps)` computes `rows` x `vectors * 16` accumulators over all of K and stores them:

    acc[r * 64 + c] = sum over k of x[r * x_stride + k] * w[k * 64 + c]

for bf16 with pairs: `x` and `w` are int32 (two bf16), `steps` is K / 2, and each step adds the two products of a pair.
One loop over K in order, whatever the tile size, so a row's result does not depend on which variant computed it.

for "u8" with four unsigned bytes of a weight and four signed ones of x per int32 and K / 4 steps; accumulators hold the
bits of int32 sums.

`NAME_ahead` has one more parameter after `acc`, the address of an int64 array `ahead` of addresses, one for every
`PIECE_STEPS` steps, and asks for `LINES_AHEAD` cache lines there per step: what the same thread needs next, on its way
from memory while these are multiplied (`ahead.py`). It also asks for what lies behind its rows of x, which are those of
the next tile, a line per step: they may have been written by another core, and K is read in order from so many rows at
once that the processor sees no streams.

`NAME_listed` has one more parameter after `acc`, the address of an int32 array `list`; of all steps it takes those that
are in its first `steps` entries.
"""

from __future__ import annotations

from inferir.codegen.tvm.llvm.llvm_lib import call, sync
from inferir.codegen.tvm.source import PrivateFunction, Writer
from inferir.ir.errors import CodegenError

BLOCK = 64
"""Output columns of one packed weight block."""

LINES_AHEAD = 2
"""Lines that a tile prefetches per step: two tiles ask for all of a block."""

PIECE_STEPS = 16
PIECE = PIECE_STEPS * LINES_AHEAD * 64
"""Bytes behind each address of what a tile prefetches, asked for in so many steps."""

MEMORY = {"bf16": "int32", "f32": "float32", "u8": "int32"}
"""TIR element type of one K step: a bf16 pair, one float, or four bytes."""

_DOT = {"bf16": "inf_dot_bf16", "u8": "inf_dot_u8"}


def most_rows(vectors: int, dtype: str, features: frozenset[str]) -> int:
    """Most rows of a tile `vectors` wide whose accumulators and operands fit the vector registers.

    Operands are the tile's weights and one broadcast input; without the bf16 dot product both exist twice, as even and
    odd halves, beside a mask.
    """
    registers, width = (32, vectors) if "avx512f" in features else (16, 2 * vectors)
    if dtype != "bf16" or "avx512bf16" in features:
        return (registers - 1 - width) // width
    return (registers - 3 - 2 * width) // width


def tall_rows(dtype: str, features: frozenset[str]) -> int:
    """Rows of the tile with the fewest loads per product, for many rows: 4 vectors wide, 1 with AVX2's 16 registers."""
    return most_rows(4 if "avx512f" in features else 1, dtype, features)


def single_rows(dtype: str, features: frozenset[str]) -> int:
    """Rows that one tile can still take, so that weights are read once: up to 2 vectors wide, 1 with AVX2."""
    return most_rows(2 if "avx512f" in features else 1, dtype, features)


def reread_rows(dtype: str, features: frozenset[str]) -> int:
    """Rows up to which a product is bound by reading its weights, and all rows meet a block while it lies in the cache.

    Two tall tiles, the second of which reads the block from the second-level cache, are ahead of one narrow tile that
    reads memory in strides: by a quarter at 8 rows.
    """
    return max(single_rows(dtype, features), 16)


def tile_vectors(rows: int, dtype: str, features: frozenset[str]) -> int:
    """The widest tile of `rows` rows that fits: 4, 2 or 1 vectors. A single row takes weights straight from memory."""
    return next(v for v in (4, 2, 1) if rows == 1 or v == 1 or rows <= most_rows(v, dtype, features))


def micro_kernel(dtype: str, rows: int, vectors: int, ahead: bool = False, *, listed: bool = False) -> PrivateFunction:
    """The function for one tile shape; `dtype` is "bf16", "f32" or "u8". ahead: the variant that prefetches; listed:
    the one that takes the steps of a list.
    """
    if dtype not in MEMORY:
        raise CodegenError(f"matmul: no micro-kernel for {dtype}")
    name = f"mm_{dtype}_{rows}x{vectors}{'_ahead' if ahead else ''}{'_listed' if listed else ''}"
    kind = MEMORY[dtype]
    vector = f"{kind}x16"
    w = Writer()
    w.line("@T.prim_func(private=True)")
    head = f'x: T.handle("{kind}"), w: T.handle("{kind}"), acc: T.handle("float32")'
    head += ', ahead: T.handle("int64")' if ahead else ""
    head += ', list: T.handle("int32")' if listed else ""
    with w.block(f"def {name}({head}, x_stride: T.int32, steps: T.int32) -> T.int32:"):
        w.line('T.func_attr({"tirx.noalias": True})')
        for buffer, data, element in (("X", "x", kind), ("W", "w", kind), ("ACC", "acc", "float32")):
            w.line(f'{buffer} = T.decl_buffer((1,), "{element}", data={data})')
        if ahead:
            w.line('AHEAD = T.decl_buffer((1,), "int64", data=ahead)')
        if listed:
            w.line('LIST = T.decl_buffer((1,), "int32", data=list)')
        # Register tiles: constant indices after unrolling, so LLVM keeps every vector of `a` in a register.
        stack = 'annotations={"disable_lower_builtin": True}'
        w.line(f'a = T.alloc_buffer(({rows * vectors}, 16), "float32", {stack})')
        lane = "T.ramp(0, 1, 16)"
        with w.block(f"for i in T.unroll({rows * vectors}):"):
            w.line(f"a[i, {lane}] = T.broadcast(T.float32(0), 16)")
        with w.block(f"for {'j' if listed else 'k'} in range(steps):"):
            if listed:
                w.line("k: T.let[T.int32] = LIST[j]")
            if ahead:
                within = f"T.cast(T.bitwise_and(k, {PIECE_STEPS - 1}) * {64 * LINES_AHEAD}, 'int64')"
                w.line(f"piece: T.let[T.int64] = AHEAD[T.shift_right(k, {PIECE_STEPS.bit_length() - 1})] + {within}")
                for line in range(LINES_AHEAD):
                    address = sync("inf_ptr", f"piece + T.int64({64 * line})")
                    w.line(f"T.evaluate({sync('inf_prefetch_read', address)})")
                address = f"T.address_of(X[x_stride * {rows} + k * 16])"  # 16 words of 4 bytes: a line
                w.line(f"T.evaluate({sync('inf_prefetch_read', address)})")
            for v in range(vectors):
                w.line(f"w{v}: T.let[T.{vector}] = W[T.ramp(k * {BLOCK} + {16 * v}, 1, 16)]")
            with w.block(f"for r in T.unroll({rows}):"):
                if listed:  # else all rows are loaded first, into more registers than there are
                    w.line(f"T.evaluate({sync('inf_in_order')})")
                w.line(f"xr: T.let[T.{vector}] = T.broadcast(X[x_stride * r + k], 16)")
                for v in range(vectors):
                    c = f"a[r * {vectors} + {v}, {lane}]"
                    dot = (_DOT[dtype], c, "xr", f"w{v}") if dtype in _DOT else ("inf_fma", "xr", f"w{v}", c)
                    w.line(f"{c} = {call(dot[0], 16, *dot[1:])}")
        with w.block(f"for r in T.unroll({rows}):"), w.block(f"for v in T.unroll({vectors}):"):
            w.line(f"ACC[T.ramp({BLOCK} * r + 16 * v, 1, 16)] = a[r * {vectors} + v, {lane}]")
        w.line("return T.int32(0)")
    return PrivateFunction(name, w.text())
