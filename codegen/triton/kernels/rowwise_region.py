"""The row-wise anchor: one program per row (and per tile of it, where nothing is reduced) computes all results.

Every result is a sweep over its features in blocks of powers of two, masked at the end. How a row is cut depends on the
region alone, never on the bucket, so that a row's sums are added in the same order whatever runs beside it.
"""

from __future__ import annotations

from math import prod

from inferir.codegen.lower.cache_write import CacheWrite
from inferir.codegen.lower.decompose import decompose
from inferir.codegen.lower.emitter import Place
from inferir.codegen.lower.index import Index, flatten, unflatten
from inferir.codegen.lower.rows import has_row, row_symbol, static_shape, stored_value, stores, sweep_shapes
from inferir.codegen.triton.emitter import NoRoomError, TritonEmitter, positions_of
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.codegen.triton.scalar import HALF, OPS, memory
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import dim_str
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.graph.registry import opdef

TILE = 1024  # elements per program where rows can be cut
LIMIT = 32768  # elements per program where they cannot
MAX_WARPS = 16
PER_WARP = 256  # elements: one 128-bit load of bf16 per thread

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
"""


def lower(body: Graph, name: str) -> KernelSource:
    """Lower a row-wise body. Parameters: its inputs in order, then its results but caches, which are written in place.

    Raises `CodegenError` naming the op, type or size that has no form here.
    """
    return _RowKernel(name, decompose(body, OPS)).lower()


class _RowKernel:
    def __init__(self, name: str, body: Graph) -> None:
        self.name = name
        self.body = body
        self.row = row_symbol(body)
        self.pointers = {v: f"p{i}" for i, v in enumerate(body.inputs)}
        self.whole = any(opdef(n.op).reduction for n in body.nodes)
        self.shapes = {self._own_shape(v) for v in body.outputs}

    def lower(self) -> KernelSource:
        params = [(self.pointers[v], memory(v.type)) for v in self.body.inputs]
        args: list[KernelArg] = [*map(Operand, range(len(self.body.inputs)))]
        lines: list[str] = []
        elements = tiles = 1
        kept: dict[tuple[int, ...], TritonEmitter] = {}
        for i, value in enumerate(self.body.outputs):
            if not stores(value):
                if not has_row(value.type, self.row):
                    raise CodegenError(f"result {i} is {value.type}: it does not run along the rows")
                params.append((f"o{i}", memory(value.type)))
                args.append(Result(i))
            emitter = self._result(i, value, kept)
            lines += emitter.lines
            emitter.lines = []
            size, cut = _measure(emitter)
            elements, tiles = max(elements, size), max(tiles, cut)
        warps = max(1, min(MAX_WARPS, elements // PER_WARP))
        text = f"{HEAD}def {self.name}({', '.join(p for p, _ in params)}):\n"
        text += "".join(f"    {line}\n" for line in ["row = tl.program_id(0).to(tl.int64)", *lines])
        grid = (dim_str(self.row), str(tiles))
        return KernelSource(self.name, text, tuple(args), tuple(params), {"warps": warps, "elements": elements}, grid)

    def _own_shape(self, value: Value) -> tuple[int, ...]:
        return static_shape(stored_value(value).type, self.row) or (1,)

    def _result(self, number: int, value: Value, kept: dict[tuple[int, ...], TritonEmitter]) -> TritonEmitter:
        """Write the statements of a result with the first block shape that has room for its reductions."""
        problem: NoRoomError | None = None
        shapes = sweep_shapes(stored_value(value), self.row)
        for shape in dict.fromkeys([*shapes, (*shapes[0], 1)]):
            e = kept.get(shape) or self._emitter(number, shape)
            before = (dict(e.axes), dict(e.names), dict(e.walk.done))
            try:
                self._store(number, value, e)
            except NoRoomError as error:
                e.lines, (e.axes, e.names, e.walk.done) = [], before
                problem = problem or error
                continue
            kept[shape] = e
            return e
        raise problem or CodegenError("no block shape fits")

    def _emitter(self, number: int, shape: tuple[int, ...]) -> TritonEmitter:
        if self.whole:
            tile = None
        else:
            rest = prod(1 << (d - 1).bit_length() for d in shape[1:])
            tile = max(1, min(1 << (shape[0] - 1).bit_length(), TILE // rest))
        prefix = f"s{number}_" if number else ""
        return TritonEmitter(self.row, self.pointers, shape, tile, len(self.shapes) > 1, prefix)

    def _store(self, number: int, value: Value, e: TritonEmitter) -> None:
        stored, own = stored_value(value), self._own_shape(value)
        place = e.place()
        inner = place if e.shape == own else unflatten(flatten(place, e.shape), own)
        if stores(value):
            pointer, at = self._cache(value, e, inner)
        else:
            pointer, at = f"o{number} + row * {prod(own)}", flatten(place, e.shape)
        text = e.walk.value(stored, Place(inner if static_shape(stored.type, self.row) else ())).text
        if stored.type.dtype in HALF:
            text = f"{text}.to({HALF[stored.type.dtype]})"
        elif stored.type.dtype is DType.BOOL:
            text = f"{text}.to(tl.uint8)"
        mask, offset = e.mask(at)
        spread = "".join(f" + {e.axis(p).name} * 0" for p in range(len(e.shape)) if p not in positions_of(at))
        e.lines.append(f"tl.store({pointer} + ({offset}{spread}), {text}{', mask=' + mask if mask else ''})")

    def _cache(self, value: Value, e: TritonEmitter, index: tuple[Index, ...]) -> tuple[str, Index]:
        """Pointer and offset of a row's elements in the paged cache."""
        write = CacheWrite.of(value, self.row)
        if write.cache not in self.pointers:
            raise CodegenError("kv.write to a computed cache has no row-wise form")
        block, pack, (head, channel) = write.block_size, write.pack, index
        slot = e.as_row(e.walk.value(write.slots, Place(())))
        start = e.let(f"{slot} // {block} * {write.heads * write.page}")
        if write.keys:
            pair, half = channel.divmod(pack)
            inside = f"{slot} % {block} * {pack}"
            at = pair.scale(block * pack) + half
        else:
            inside = f"{slot} % {block} // {pack} * {write.width * pack} + {slot} % {pack}"
            at = channel.scale(pack)
        return f"{self.pointers[write.cache]} + {start} + {e.let(inside)}", head.scale(write.page) + at


def _measure(emitter: TritonEmitter) -> tuple[int, int]:
    """Elements that one program holds, and programs per row. Raises `CodegenError` for rows that are too long."""
    sizes = [max(a.block for (p, _), a in emitter.axes.items() if p == q) for q in range(len(emitter.shape))]
    if prod(sizes) > LIMIT:
        raise CodegenError(f"{prod(sizes)} elements per row are more than the {LIMIT} that one program can hold")
    return prod(sizes), -(-emitter.shape[0] // sizes[0]) if emitter.tile is not None else 1
