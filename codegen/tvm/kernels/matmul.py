"""Matmul kernels: x [M, K] times a weight [N, K] in any format that has a micro-kernel, with an epilogue on the
accumulators.

Every format has blocks of 64 output columns with K in order (`inferir.ir.weight_blocks`). One layout serves one row and
a thousand. With `interleave` 2 the N outputs are two halves (gate and up) and a block holds 16 columns of each in turn,
twice.

A task is a group of blocks times a panel of rows; within it each block meets the panel's row tiles while it lies in
the cache. Row tiles are split evenly, so 7 rows are 4 + 3 rather than 6 + 1. Accumulators of a tile go to the thread's
scratch memory (64 floats per row, next to nothing beside K), and the epilogue reads them there, once per row and run of
columns: it is emitted once per kernel, not per tile shape, and narrow column tails need no masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferir.codegen.tunables import Product
from inferir.codegen.tvm.kernels.kv_prefetch import KV_PARAMS, KvPrefetch, find_pieces, list_bytes, write_list
from inferir.codegen.tvm.kernels.microkernel import MicroKernel, micro_kernel, tile_function
from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import (
    Param,
    PrivateFunction,
    Stream,
    TaskKernel,
    Writer,
    entry,
    function,
    pieces,
    ramp,
)
from inferir.ir.errors import CodegenError
from inferir.ir.weight_blocks import BLOCK


@dataclass(frozen=True)
class Columns:
    """A run of output columns that an epilogue handles at once.

    lanes: 16, or less in the last block; column: TIR text of the first column, counted within one half if the weights
    are interleaved; acc: TIR names of the accumulators (`float32x<lanes>`), one per interleaved part.
    """

    lanes: int
    column: str
    acc: tuple[str, ...]


Epilogue = Callable[[str, Columns], list[str]]
"""`epilogue(row, columns)` returns TIR statements (lines) that compute and store outputs of row `row` (TIR text).

It is called once for the full 16-lane case and once per piece of the last block. Memory of an extra parameter `p` is
the flat buffer `p_b`. Every name it binds must be unique within one call only.
"""


@dataclass(frozen=True)
class MatmulTile:
    """rows: most rows of a register tile; panel: rows per task; blocks: blocks of 64 columns per task."""

    rows: int
    panel: int
    blocks: int

    @property
    def prefetches(self) -> bool:
        """Whether tiles prefetch what comes next. One that is alone in its panel waits for memory itself, and the
        processor sees one long stream."""
        return self.panel > self.rows


@dataclass(frozen=True)
class Lists:
    """Places in scratch memory, in floats, of the list of what a tile prefetches, and of pieces of keys and values."""

    at: int
    kv_at: int | None = None


TASK_BYTES = 128 * 1024  # of weights, when few rows make a task memory-bound
_TASK_MADDS = 2_500_000  # multiply-adds of a compute-bound task: about 20 microseconds
TASKS = 32  # tasks an operation should have, so that a few threads share it evenly


def micro_of(product: Product) -> MicroKernel:
    """How it is multiplied. Raises `CodegenError` if the format cannot be."""
    return micro_kernel(product.format, product.dtype)


def choose_tile(product: Product, features: frozenset[str]) -> MatmulTile:
    """Tile and task sizes: tasks of some microseconds, and enough of them to share."""
    micro, k, max_rows = micro_of(product), product.k, product.most
    rows = micro.tall_rows(features)
    blocks = -(-product.n // BLOCK)
    if max_rows <= micro.reread_rows(features):
        rows, panel = min(rows, max_rows), max_rows
    else:
        wanted = max(rows * 8, _TASK_MADDS // (BLOCK * k))
        shared = max_rows // -(-TASKS // blocks)
        panel = max(rows * 4, -(-min(wanted, shared) // rows) * rows)
    light = min(TASK_BYTES // micro.block_bytes(k), _TASK_MADDS // (BLOCK * k * panel))
    return MatmulTile(rows, panel, max(1, min(light, blocks // TASKS)))


def matmul_kernel(
    name: str,
    product: Product,
    *,
    tile: MatmulTile,
    features: frozenset[str],
    epilogue: Epilogue,
    extra: Sequence[Param],
    rows_symbol: str = "n_t",
    kv: KvPrefetch | None = None,
) -> TaskKernel:
    """A matmul with parameters `x`, the stored tensors of the weight, then `extra`.

    rows_symbol: the count that is the number of rows. `features` are LLVM feature names. kv: what a tile prefetches
    beside weights; `KV_PARAMS` are then the last parameters. Raises `CodegenError` naming the kernel for sizes it
    cannot take.
    """
    k, n, interleave, micro = product.k, product.n, product.interleave, micro_of(product)
    if k % micro.together:
        raise CodegenError(f"{name}: K {k} must be a multiple of {micro.together} for {product.dtype}")
    if interleave not in (1, 2) or n % interleave:
        raise CodegenError(f"{name}: {n} outputs cannot be interleaved by {interleave}")
    steps, blocks = k // micro.together, -(-n // BLOCK)
    vectors = {rows: micro.tile_vectors(rows, features) for rows in range(tile.rows, 0, -1)}
    ahead = tile.prefetches and micro.prefetches
    shared = {rows: tile_function(micro, rows, v, ahead) for rows, v in vectors.items()}
    stored = [Param(part.name, part.dtype) for part in micro.parts]
    params = (Param("x", micro.word), *stored, *extra, *(KV_PARAMS if kv else ()))
    w = Writer()
    w.lines(_epilogue_function(name, n, interleave, epilogue, extra).splitlines())
    with entry(w, name, params, {p.upper(): p for p in ("x", *(p.name for p in stored), "scratch")}):
        _read_task(w, tile, rows_symbol)
        list_at = tile.rows * BLOCK
        kv_at = list_at + list_bytes(steps, None) // 4
        if kv:
            tasks, calls = f"(panels * {-(-blocks // tile.blocks)})", f"tiles * {4 // vectors[tile.rows]}"
            find_pieces(w, kv, kv_at, tasks=tasks, calls=calls, steps=steps)
        count = str(tile.blocks) if blocks % tile.blocks == 0 else f"T.min({tile.blocks}, {blocks} - first_block)"
        with w.block(f"for i in range({count}):"), w.block("for t in range(tiles):"):
            w.line("block: T.let[T.int32] = first_block + i")
            w.line("row: T.let[T.int32] = first_row + t * low + T.min(t, longer)")
            w.line("height: T.let[T.int32] = low + T.cast(t < longer, 'int32')")
            if ahead:
                after = f"T.truncdiv(later, panels) * {tile.blocks} + i"
                w.line(f"next_block: T.let[T.int32] = T.Select(tiles == 1, block, T.min({after}, {blocks - 1}))")
            for rows, function in shared.items():
                with w.block(f"{'el' if rows < tile.rows else ''}if height == {rows}:"):
                    x = f"X[T.cast(row, 'int64') * {steps}]"
                    lists = Lists(list_at, kv_at if kv else None) if ahead else None
                    buffers = [p.name.upper() for p in stored]
                    call_tile(w, micro, function, vectors[rows], x, buffers, "SCRATCH[{}]", steps, steps, lists=lists)
            pointers = "".join(f"{p.name}, " for p in extra)
            w.line(f"T.evaluate(Mod.{name}_out({pointers}scratch, row, height, block))")
    panels = f"T.truncdiv({rows_symbol} + {tile.panel - 1}, {tile.panel})"
    stream = Stream(1, tile.blocks * micro.parts[0].elements(steps) * micro.parts[0].itemsize, panels)
    tasks = f"{panels} * {-(-blocks // tile.blocks)}"
    scratch, functions = tile.rows * BLOCK * 4 + list_bytes(steps, kv), tuple(shared.values())
    return TaskKernel(name, params, w.text(), tasks, scratch, functions, stream, upward=not ahead)


def call_tile(
    w: Writer,
    micro: MicroKernel,
    function: PrivateFunction,
    vectors: int,
    x: str,
    weights: Sequence[str],
    acc: str,
    stride: int,
    steps: int,
    *,
    lists: Lists | None = None,
    chosen: tuple[str, str] | None = None,
) -> None:
    """Call a micro-kernel's `function`, `vectors` wide, as often as a block of weights needs it.

    x: the first element of the tile's rows, which are `stride` apart; weights: buffers of the stored tensors, of which
    the block `block` is meant; acc: place of accumulator `{}`; steps: those of a block. lists: for kernels that
    prefetch; tile `t` of `tiles` prefetches its share of `next_block`. chosen: for kernels that take a list, its
    address and length.
    """
    for part in range(0, 4, vectors):
        at = [
            f"{buffer}[T.cast(block, 'int64') * {stored.elements(steps)} + {16 * part}]"
            for buffer, stored in zip(weights, micro.parts, strict=True)
        ]
        args = [f"T.address_of({place})" for place in (x, *at, acc.format(16 * part))]
        if lists:
            number = f"t * {4 // vectors} + {part // vectors}"
            with w.block("for _ in range(1):"):
                write_list(w, lists.at, steps, number=number, weights=weights[0], block="next_block", kv_at=lists.kv_at)
            args.append(sync("inf_ptr", sync("inf_addr", f"T.address_of(SCRATCH[{lists.at}])")))
        args += [chosen[0], str(stride), chosen[1]] if chosen else [str(stride), str(steps)]
        w.line(f"T.evaluate(Mod.{function.name}({', '.join(args)}))")


def _read_task(w: Writer, tile: MatmulTile, rows_symbol: str) -> None:
    """From the task number to its first block and rows, and how the rows are split into tiles."""
    w.line(f"panels: T.let[T.int32] = T.truncdiv({rows_symbol} + {tile.panel - 1}, {tile.panel})")
    w.line(f"first_block: T.let[T.int32] = T.truncdiv(task, panels) * {tile.blocks}")
    w.line("panel: T.let[T.int32] = T.truncmod(task, panels)")
    w.line(f"small: T.let[T.int32] = T.truncdiv({rows_symbol}, panels)")
    w.line(f"more: T.let[T.int32] = {rows_symbol} - small * panels")
    w.line("first_row: T.let[T.int32] = panel * small + T.min(panel, more)")
    w.line("rows: T.let[T.int32] = small + T.cast(panel < more, 'int32')")
    w.line(f"tiles: T.let[T.int32] = T.truncdiv(rows + {tile.rows - 1}, {tile.rows})")
    w.line("low: T.let[T.int32] = T.truncdiv(rows, tiles)")
    w.line("longer: T.let[T.int32] = rows - low * tiles")


def _epilogue_function(name: str, n: int, interleave: int, epilogue: Epilogue, extra: Sequence[Param]) -> str:
    """The private function that runs the epilogue on `height` rows of accumulators of one block."""
    per_block = BLOCK // interleave
    outputs = n // interleave
    full, tail = divmod(outputs, per_block)
    w = Writer()
    pointers = {**{f"{p.name}_b": (p.name, p.dtype) for p in extra}, "ACC": ("acc", "float32")}
    out = function(w, f"{name}_out", pointers, "first_row height block", noalias=False)
    with out, w.block("for r in range(height):"):
        w.line("row: T.let[T.int32] = first_row + r")
        if full:
            whole = f"if block < {full}:" if tail else "for _ in range(1):"
            with w.block(whole), w.block(f"for v in range({per_block // 16}):"):
                at = f"r * {BLOCK} + v * {16 * interleave}"
                _piece(w, epilogue, interleave, at, f"block * {per_block} + v * 16", 16)
        if tail:
            with w.block("else:" if full else "for _ in range(1):"):
                for offset, lanes in pieces(tail):
                    at = f"r * {BLOCK} + {offset // 16 * 16 * interleave + offset % 16}"
                    with w.block("for _ in range(1):"):
                        _piece(w, epilogue, interleave, at, f"{full * per_block + offset}", lanes)
    return w.text()


def _piece(w: Writer, epilogue: Epilogue, interleave: int, at: str, column: str, lanes: int) -> None:
    """Bind the accumulators of one run of columns and add the epilogue's statements."""
    names = tuple(f"acc{p}" for p in range(interleave))
    for p, bound in enumerate(names):
        w.line(f"{bound}: T.let = ACC[{ramp(f'{at} + {16 * p}', lanes)}]")
    w.line(f"column: T.let[T.int32] = {column}")
    w.lines(epilogue("row", Columns(lanes, "column", names)))
