"""The row-wise anchor: one program per row (and per tile of it, where nothing is reduced) computes all results.

Every result is a sweep over its features in blocks of powers of two, masked at the end. How a row is cut depends on the
region alone, never on the bucket, so that a row's sums are added in the same order whatever runs beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from inferir.codegen.backend import KernelSource
from inferir.codegen.lower.decompose import decompose
from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.triton.evaluate import Sweep
from inferir.codegen.triton.index import Index, flatten, unflatten
from inferir.codegen.triton.scalar import HALF
from inferir.codegen.triton.value import NoRoomError, memory
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim, dim_str
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.graph.registry import REDUCTION, has_trait

TILE = 1024  # elements per program where rows can be cut
LIMIT = 32768  # elements per program where they cannot
MAX_WARPS = 16
PER_WARP = 256  # elements: one 128-bit load of bf16 per thread

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
"""


def row_symbol(body: Graph) -> Dim:
    """The symbol of the row axis: the leading one of the first result (of what a cache write stores)."""
    for value in body.outputs:
        type_ = value.node.operands[1].type if value.op == "kv.write" else value.type
        if type_.rank and not isinstance(type_.shape[0], int):
            return type_.shape[0]
    raise CodegenError("no result has a row axis")


def lower_rowwise(name: str, body: Graph) -> KernelSource:
    """Lower a row-wise body. Parameters: its inputs in order, then its results but caches, which are written in place.

    Raises `CodegenError` naming the op, type or size that has no form here.
    """
    return _RowKernel(name, decompose(body)).lower()


@dataclass
class _Written:
    """A result being lowered: its sweep and how many elements and tiles that takes."""

    sweep: Sweep
    elements: int
    tiles: int


class _RowKernel:
    def __init__(self, name: str, body: Graph) -> None:
        self.name = name
        self.body = body
        self.row = row_symbol(body)
        self.pointers = {v: f"p{i}" for i, v in enumerate(body.inputs)}
        self.whole = any(has_trait(n.op, REDUCTION) for n in body.nodes)
        self.shapes = {self._own_shape(v) for v in body.outputs}

    def lower(self) -> KernelSource:
        params = [(self.pointers[v], memory(v.type)) for v in self.body.inputs]
        args: list[KernelArg] = [*map(Operand, range(len(self.body.inputs)))]
        lines: list[str] = []
        elements = tiles = 1
        kept: dict[tuple[int, ...], Sweep] = {}
        for i, value in enumerate(self.body.outputs):
            if value.op != "kv.write":
                if not has_row(value.type, self.row):
                    raise CodegenError(f"result {i} is {value.type}: it does not run along the rows")
                params.append((f"o{i}", memory(value.type)))
                args.append(Result(i))
            done = self._result(i, value, kept)
            lines += done.sweep.lines
            done.sweep.lines = []
            elements, tiles = max(elements, done.elements), max(tiles, done.tiles)
        warps = max(1, min(MAX_WARPS, elements // PER_WARP))
        text = f"{HEAD}def {self.name}({', '.join(p for p, _ in params)}):\n"
        text += "".join(f"    {line}\n" for line in ["row = tl.program_id(0).to(tl.int64)", *lines])
        grid = (dim_str(self.row), str(tiles))
        return KernelSource(self.name, text, tuple(args), tuple(params), {"warps": warps, "elements": elements}, grid)

    def _own_shape(self, value: Value) -> tuple[int, ...]:
        stored = value.node.operands[1] if value.op == "kv.write" else value
        return static_shape(stored.type, self.row) or (1,)

    def _shapes(self, value: Value) -> list[tuple[int, ...]]:
        """Block shapes to try for a result: its own, those of values it may reshape, its own with room to reduce."""
        own = self._own_shape(value)
        stack = [value.node.operands[1] if value.op == "kv.write" else value]
        out, seen = [own], set[Value]()
        while stack:
            v = stack.pop()
            if v in seen or not has_row(v.type, self.row):
                continue
            seen.add(v)
            shape = static_shape(v.type, self.row)
            if shape and prod(shape) == prod(own):
                out.append(shape)
            stack += v.node.operands
        return list(dict.fromkeys([*out, (*own, 1)]))

    def _result(self, number: int, value: Value, kept: dict[tuple[int, ...], Sweep]) -> _Written:
        """Write the statements of a result with the first block shape that has room for its reductions."""
        problem: NoRoomError | None = None
        for shape in self._shapes(value):
            sweep = kept.get(shape) or self._sweep(number, shape)
            before = (dict(sweep.axes), dict(sweep.done), dict(sweep.names))
            try:
                self._store(number, value, sweep)
            except NoRoomError as error:
                sweep.lines, (sweep.axes, sweep.done, sweep.names) = [], before
                problem = problem or error
                continue
            kept[shape] = sweep
            return self._measure(sweep)
        raise problem or CodegenError("no block shape fits")

    def _sweep(self, number: int, shape: tuple[int, ...]) -> Sweep:
        if self.whole:
            tile = None
        else:
            rest = prod(1 << (d - 1).bit_length() for d in shape[1:])
            tile = max(1, min(1 << (shape[0] - 1).bit_length(), TILE // rest))
        prefix = f"s{number}_" if number else ""
        return Sweep(self.row, self.pointers, shape, tile, len(self.shapes) > 1, prefix)

    def _measure(self, sweep: Sweep) -> _Written:
        sizes = [max(a.block for (p, _), a in sweep.axes.items() if p == q) for q in range(len(sweep.shape))]
        if prod(sizes) > LIMIT:
            raise CodegenError(f"{prod(sizes)} elements per row are more than the {LIMIT} that one program can hold")
        return _Written(sweep, prod(sizes), -(-sweep.shape[0] // sizes[0]) if sweep.tile is not None else 1)

    def _store(self, number: int, value: Value, sweep: Sweep) -> None:
        from_place = sweep.place()
        if value.op == "kv.write":
            stored = value.node.operands[1]
            pointer, at = self._cache(value, sweep)
        else:
            stored = value
            pointer, at = (
                f"o{number} + row * {prod(static_shape(value.type, self.row))}",
                flatten(from_place, sweep.shape),
            )
        own = self._own_shape(value)
        place = self._index(from_place, sweep.shape, own if static_shape(stored.type, self.row) else ())
        text = sweep.value(stored, place).text
        if stored.type.dtype in HALF:
            text = f"{text}.to({HALF[stored.type.dtype]})"
        elif stored.type.dtype is DType.BOOL:
            text = f"{text}.to(tl.uint8)"
        mask, offset = sweep.mask(at)
        spread = "".join(f" + {sweep.axis(p).name} * 0" for p in range(len(sweep.shape)) if p not in at.positions)
        sweep.lines.append(f"tl.store({pointer} + ({offset}{spread}), {text}{', mask=' + mask if mask else ''})")

    def _index(self, place: tuple[Index, ...], shape: tuple[int, ...], own: tuple[int, ...]) -> tuple[Index, ...]:
        """The index into the result's own features of an element of the sweep."""
        return place if shape == own else unflatten(flatten(place, shape), own)

    def _cache(self, value: Value, sweep: Sweep) -> tuple[str, Index]:
        """Pointer and offset of a row's elements in the paged cache (layouts: `ir.ops.kv.cache_type`)."""
        cache, x, slots = value.node.operands
        if cache not in self.pointers:
            raise CodegenError("kv.write to a computed cache has no row-wise form")
        heads, size = static_shape(x.type, self.row)
        block, pack = value.node.attrs["block_size"], cache.type.shape[-1]
        assert isinstance(pack, int)
        slot = sweep.let(f"{sweep.value(slots, ()).text}.to(tl.int64)")
        start = sweep.let(f"{slot} // {block} * {heads * size * block}")
        h, d = self._index(sweep.place(), sweep.shape, (heads, size))
        if value.node.attrs["role"] == "k":
            pair, half = d.divmod(pack)
            inside = f"{slot} % {block} * {pack}"
            at = h.scale(size * block) + pair.scale(block * pack) + half
        else:
            inside = f"{slot} % {block} // {pack} * {size * pack} + {slot} % {pack}"
            at = h.scale(size * block) + d.scale(pack)
        return f"{self.pointers[cache]} + {start} + {sweep.let(inside)}", at
