"""Register-tiled inner products: private PrimFuncs shared by every matmul of a module.

`NAME(x, w, acc, x_stride, steps)` computes `rows` x `vectors * 16` accumulators over all of K and stores them:

    acc[r * 64 + c] = sum over k of x[r * x_stride + k] * w[k * 64 + c]

A step may take several K: two bf16 in an int32, or four bytes. What a step reads of weights, and how it multiplies, a
`MicroKernel` says, which belongs to a weight format and an element type of x (`inferir.codegen.tvm.formats`); formats
that store several tensors have several parameters in the place of `w`. One loop over K in order, whatever the tile
size, so a row's result does not depend on which variant computed it.

`NAME_ahead` has one more parameter after `acc`, the address of an int64 array `ahead` of addresses, one for every
`PIECE_STEPS` steps, and prefetches `PREFETCH_LINES` cache lines there per step: what the same thread needs next, on its
way from memory while these are multiplied (`kv_prefetch.py`). It also prefetches what lies behind its rows of x, which
are those of the next tile, a line per step: they may have been written by another core, and K is read in order from so
many rows at once that the processor sees no streams.

`NAME_listed` has one more parameter after `acc`, the address of an int32 array `list`; of all steps it takes those that
are in its first `steps` entries.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferir.codegen.tvm import formats
from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import PrivateFunction, Writer, function, ramp
from inferir.ir.errors import CodegenError
from inferir.ir.plugin_registry import PluginRegistry
from inferir.ir.weight_blocks import BLOCK

PREFETCH_LINES = 2
"""Lines that a tile prefetches per step: two tiles prefetch all of a block."""

PIECE_STEPS = 16
PIECE = PIECE_STEPS * PREFETCH_LINES * 64
"""Bytes behind each address of what a tile prefetches, asked for in so many steps."""

STEP_BYTES = 4 * BLOCK
"""Bytes of a block that a step reads if each output has a word of four: what prefetching is made for."""


@dataclass(frozen=True)
class Part:
    """A stored tensor that micro-kernels read: parameter, TIR element type, and for how many steps an element holds (a
    scale of 32 steps, say). Elements of a block lie together, `BLOCK` of each step that has any.
    """

    name: str
    dtype: str
    every: int = 1

    def elements(self, steps: int) -> int:
        """Those of a block with K in so many steps."""
        return -(-steps // self.every) * BLOCK

    @property
    def itemsize(self) -> int:
        return int("".join(c for c in self.dtype if c.isdigit())) // 8


@dataclass(frozen=True)
class MicroKernel:
    """How rows of one element type are multiplied with weights of one format.

    name: in names of functions; word: TIR element type of x, one per step; together: K per step; parts: what is read of
    weights, the one with most bytes first; dot: (accumulators, x, weights of vector `v`) as TIR text -> the new
    accumulators; feature: of a target, without which weights and x are multiplied as even and odd halves; load: binds
    `w{v}` for a vector `v` of step `k`, default the word of the only part; registers: besides those for accumulators,
    weights and one x.
    """

    name: str
    word: str
    together: int
    parts: tuple[Part, ...]
    dot: Callable[[str, str, str], str]
    feature: str | None = None
    load: Callable[[Writer, int], None] | None = None
    registers: int = 0

    @property
    def prefetches(self) -> bool:
        """Whether there is a variant that prefetches."""
        return [part.itemsize * BLOCK for part in self.parts] == [STEP_BYTES]

    def block_bytes(self, k: int) -> int:
        return sum(part.elements(-(-k // self.together)) * part.itemsize for part in self.parts)

    def most_rows(self, vectors: int, features: frozenset[str]) -> int:
        """Most rows of a tile `vectors` wide whose accumulators and operands fit the vector registers.

        Operands are the tile's weights and one broadcast input; as halves both exist twice, beside a mask.
        """
        registers, width = (32, vectors) if "avx512f" in features else (16, 2 * vectors)
        registers -= self.registers
        if self.feature is None or self.feature in features:
            return (registers - 1 - width) // width
        return (registers - 3 - 2 * width) // width

    def tall_rows(self, features: frozenset[str]) -> int:
        """Rows of the tile with the fewest loads per product, for many rows: 4 vectors wide, 1 with AVX2's 16
        registers.
        """
        return self.most_rows(4 if "avx512f" in features else 1, features)

    def single_rows(self, features: frozenset[str]) -> int:
        """Rows that one tile can still take, so that weights are read once: up to 2 vectors wide, 1 with AVX2."""
        return self.most_rows(2 if "avx512f" in features else 1, features)

    def reread_rows(self, features: frozenset[str]) -> int:
        """Rows up to which a product is bound by reading its weights, and all rows meet a block while it lies in the
        cache.

        Two tall tiles, the second of which reads the block from the second-level cache, are ahead of one narrow tile
        that reads memory in strides: by a quarter at 8 rows.
        """
        return max(self.single_rows(features), 16)

    def tile_vectors(self, rows: int, features: frozenset[str]) -> int:
        """The widest tile of `rows` rows that fits: 4, 2 or 1 vectors. A single row takes weights straight from
        memory.
        """
        return next(v for v in (4, 2, 1) if rows == 1 or v == 1 or rows <= self.most_rows(v, features))


READERS: PluginRegistry[Mapping[str, MicroKernel]] = PluginRegistry("tvm_formats", "micro-kernel", CodegenError)
for _module in pkgutil.iter_modules(formats.__path__):
    READERS.add(_module.name.removeprefix("read_"), f"{formats.__name__}.{_module.name}:MICRO_KERNELS")


def micro_kernel(format: str, dtype: str) -> MicroKernel:
    """How rows of `dtype` ("bf16", "f32", or "i8") are multiplied with weights in a format. Raises `CodegenError`."""
    found = READERS.get(format)
    if dtype not in found:
        raise CodegenError(f"no micro-kernel multiplies {dtype} with {format}")
    return found[dtype]


def tile_function(
    micro: MicroKernel, rows: int, vectors: int, ahead: bool = False, *, listed: bool = False
) -> PrivateFunction:
    """The function for one tile shape. ahead: the variant that prefetches; listed: the one that takes the steps of a
    list.
    """
    name = f"mm_{micro.name}_{rows}x{vectors}{'_ahead' if ahead else ''}{'_listed' if listed else ''}"
    pointers = {
        "X": ("x", micro.word),
        **{part.name.upper(): (part.name, part.dtype) for part in micro.parts},
        "ACC": ("acc", "float32"),
        **({"AHEAD": ("ahead", "int64")} if ahead else {}),
        **({"LIST": ("list", "int32")} if listed else {}),
    }
    w = Writer()
    with function(w, name, pointers, "x_stride steps"):
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
                _prefetch(w, rows)
            for v in range(vectors):
                _load(w, micro, v)
            with w.block(f"for r in T.unroll({rows}):"):
                if listed:  # else all rows are loaded first, into more registers than there are
                    w.line(f"T.evaluate({sync('inf_in_order')})")
                w.line(f"xr: T.let[T.{micro.word}x16] = T.broadcast(X[x_stride * r + k], 16)")
                for v in range(vectors):
                    sums = f"a[r * {vectors} + {v}, {lane}]"
                    w.line(f"{sums} = {micro.dot(sums, 'xr', f'w{v}')}")
        with w.block(f"for r in T.unroll({rows}):"), w.block(f"for v in T.unroll({vectors}):"):
            w.line(f"ACC[T.ramp({BLOCK} * r + 16 * v, 1, 16)] = a[r * {vectors} + v, {lane}]")
    return PrivateFunction(name, w.text())


def _load(w: Writer, micro: MicroKernel, v: int) -> None:
    """Bind `w{v}`."""
    if micro.load is not None:
        micro.load(w, v)
        return
    (part,) = micro.parts
    w.line(f"w{v}: T.let[T.{part.dtype}x16] = {part.name.upper()}[{ramp(f'k * {BLOCK} + {16 * v}', 16)}]")


def _prefetch(w: Writer, rows: int) -> None:
    """Ask for a step's share of what comes next."""
    within = f"T.cast(T.bitwise_and(k, {PIECE_STEPS - 1}) * {64 * PREFETCH_LINES}, 'int64')"
    w.line(f"piece: T.let[T.int64] = AHEAD[T.shift_right(k, {PIECE_STEPS.bit_length() - 1})] + {within}")
    for line in range(PREFETCH_LINES):
        address = sync("inf_ptr", f"piece + T.int64({64 * line})")
        w.line(f"T.evaluate({sync('inf_prefetch_read', address)})")
    address = f"T.address_of(X[x_stride * {rows} + k * 16])"  # 16 words of 4 bytes: a line
    w.line(f"T.evaluate({sync('inf_prefetch_read', address)})")
