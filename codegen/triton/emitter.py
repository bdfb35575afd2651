"""How Triton spells what the walk over a body decides: blocks of values, masks, loads, reductions in registers."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from inferir.codegen.lower.emitter import Emitter, Guard, Place
from inferir.codegen.lower.evaluate import Evaluator
from inferir.codegen.lower.index import Index, Var, unflatten
from inferir.codegen.lower.rows import reduced_axes, static_shape
from inferir.codegen.triton.scalar import HALF, OPS, REGISTER, elementwise, literal, memory
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node, Value


class NoRoomError(CodegenError):
    """A reduction finds no block dimension to run over; another block shape may have one."""


@dataclass(frozen=True)
class Axis(Var):
    """Positions along dimension `position` of the kernel's blocks; a program holds `block` of them.

    masked: a program may also hold positions past the end, which must not be read or written.
    """

    position: int
    block: int
    masked: bool

    def index(self) -> Index:
        return Index.of(self) if self.extent > 1 else Index()


@dataclass(frozen=True)
class Block:
    """The text of a computed value and the block dimensions along which it varies."""

    text: str
    positions: frozenset[int] = frozenset()


@dataclass
class TritonEmitter(Emitter[Block]):
    """Writes values in blocks with the dimensions `shape`; statements go to `lines`.

    pointers: parameter of every value that lies in memory; tile: how many positions of the first dimension one program
    holds (None: all); shared: the body has sweeps of other shapes, so that a tile may lie wholly past the end.
    """

    row_symbol: Dim
    pointers: dict[Value, str]
    shape: tuple[int, ...]
    tile: int | None
    shared: bool
    prefix: str
    lines: list[str] = field(default_factory=list)
    axes: dict[tuple[int, int], Axis] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    walk: Evaluator[Block] = field(init=False)

    splits: ClassVar[bool] = False
    row: ClassVar[str] = "row"
    ops: ClassVar[Container[str]] = OPS
    registers: ClassVar[Container[DType]] = REGISTER

    def __post_init__(self) -> None:
        self.walk = Evaluator(self.row_symbol, self)

    # --- statements and axes ---

    def let(self, text: str, kind: str = "v") -> str:
        """The name of an expression; equal expressions share one."""
        if text not in self.names:
            self.names[text] = f"{self.prefix}{kind}{len(self.names)}"
            self.lines.append(f"{self.names[text]} = {text}")
        return self.names[text]

    def axis(self, position: int, extent: int | None = None) -> Axis:
        """The axis of a block dimension, or one of another extent at its place for a reduction."""
        main = extent is None or extent == self.shape[position]
        extent = self.shape[position] if extent is None else extent
        if (position, extent) not in self.axes:
            tiled = main and position == 0 and self.tile is not None
            block = self.tile if tiled and self.tile is not None else 1 << (extent - 1).bit_length()
            spread = "" if len(self.shape) == 1 else _expand(position, len(self.shape))
            base = f"tl.program_id(1) * {block} + " if tiled else ""
            name = self.let(f"{base}tl.arange(0, {block}){spread}", "a")
            masked = extent % block != 0 or (tiled and self.shared)
            self.axes[position, extent] = Axis(name, extent, position, block, masked)
        return self.axes[position, extent]

    def place(self) -> tuple[Index, ...]:
        """The index of every element of the sweep."""
        return tuple(self.axis(p).index() for p in range(len(self.shape)))

    def mask(self, at: Index, guards: Sequence[Guard] = ()) -> tuple[str, str]:
        """The condition under which the elements at memory offset `at` exist, and the text of that offset.

        Only axes that the offset varies along matter; where a guard needs another one, the offset is spread along it.
        """
        axes = axes_of(at)
        used = [g for g in guards if axes_of(g.index) & axes]
        extra = frozenset[Axis]().union(*(axes_of(g.index) for g in used)) - axes
        spread = "".join(f" + {a.name} * 0" for a in sorted(extra, key=lambda a: a.name))
        bounds = [f"({a.name} < {a.extent})" for a in sorted(axes, key=lambda a: a.name) if a.masked]
        conditions = [*bounds, *(_condition(g) for g in used)]
        return (self.let(" & ".join(conditions), "m") if conditions else ""), at.text() + spread

    # --- values ---

    def in_memory(self, value: Value) -> bool:
        return value in self.pointers

    def load(self, source: Value, row: str | None, at: Index, place: Place) -> Block:
        memory(source.type)
        mask, offset = self.mask(at, place.guards)
        pointer = self.pointers[source]
        if row is not None:
            pointer += f" + {row} * {prod(static_shape(source.type, source.type.shape[0]))}"
        if at.terms or at.offset:
            pointer += f" + ({offset})"
        text = f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})"
        if source.type.dtype in HALF:
            text += ".to(tl.float32)"
        elif source.type.dtype is DType.BOOL:
            text += " != 0"
        guarded = (positions_of(g.index) for g in place.guards if axes_of(g.index) & axes_of(at))
        return Block(self.let(text), positions_of(at).union(*guarded))

    def as_row(self, x: Block) -> str:
        return self.let(f"{x.text}.to(tl.int64)")

    def number(self, value: float, dtype: DType, place: Place) -> Block:
        return Block(literal(value, dtype))

    def full(self, value: float, dtype: DType, place: Place) -> Block:
        return Block(self.let(f"tl.full({[1] * len(self.shape)}, {literal(value, dtype)}, {REGISTER[dtype]})"))

    def positions(self, at: Index, step: int, dtype: DType, place: Place) -> Block:
        number = f"tl.full({[1] * len(self.shape)}, 0, tl.int32) + {at.text()}"
        return Block(self.let(f"({number}).to({REGISTER[dtype]})"), positions_of(at))

    def apply(self, node: Node, args: Sequence[Block], dtype: DType, place: Place) -> Block:
        text = elementwise(node, [a.text for a in args], dtype)
        return Block(self.let(text), frozenset[int]().union(*(a.positions for a in args)))

    def cast(self, x: Block, source: DType, out: DType, place: Place) -> Block:
        if REGISTER[source] == REGISTER[out]:
            return x
        return Block(self.let(f"{x.text} != 0" if out is DType.BOOL else f"{x.text}.to({REGISTER[out]})"), x.positions)

    def rounded(self, x: Block, dtype: DType, place: Place) -> Block:
        return Block(self.let(f"{x.text}.to({HALF[dtype]}).to(tl.float32)"), x.positions)

    def select(self, at: Index, bound: int, below: Block, above: Block, place: Place) -> Block:
        text = self.let(f"tl.where({at.text()} < {bound}, {below.text}, {above.text})")
        return Block(text, below.positions | above.positions | positions_of(at))

    # --- reductions ---

    def reduce(self, walk: Evaluator[Block], node: Node, place: Place) -> Block:
        """Fold an axis of its own, along a block dimension that nothing kept varies along."""
        (x,) = node.operands
        dtype = x.type.dtype
        if dtype is DType.BOOL or dtype not in REGISTER:
            raise CodegenError(f"{node.op} of {dtype.value} has no Triton form")
        shape, reduced = static_shape(x.type, walk.row), reduced_axes(node, walk.row)
        kept = [i for i in range(len(shape)) if i not in reduced]
        at = dict(zip(kept, [place.index[i] for i in kept] if node.attrs["keepdim"] else place.index, strict=True))
        busy = frozenset[int]().union(*(positions_of(i) for i in at.values()))
        axis = self._free_axis(prod(shape[i] for i in reduced), busy, node)
        at.update(zip(reduced, unflatten(axis.index(), [shape[i] for i in reduced]), strict=True))
        guards = _outer_guards(place.guards, axis.position, busy)
        block = walk.value(x, Place(tuple(at[i] for i in range(len(shape))), guards=guards))
        result = self._fold(node, self._along(axis, block, node, dtype), axis, dtype)
        positions = block.positions - {axis.position}
        return walk.rounded(Block(result, positions), node.types[0].dtype, place)

    def _along(self, axis: Axis, block: Block, node: Node, dtype: DType) -> str:
        """What is to be folded, with all of `axis` and nothing that counts past its end."""
        text, positions = block.text, block.positions
        if axis.masked:
            text = self.let(f"tl.where({axis.name} < {axis.extent}, {text}, {_neutral(node.op, dtype)})")
            positions |= {axis.position}
        if axis.position not in positions:
            sizes = [self.axis(p).block if p in positions else 1 for p in range(len(self.shape))]
            sizes[axis.position] = axis.block
            text = self.let(f"tl.broadcast_to({text}, {sizes})")
        return text

    def _fold(self, node: Node, text: str, axis: Axis, dtype: DType) -> str:
        op, keep = node.op.removeprefix("tensor."), ", keep_dims=True" if len(self.shape) > 1 else ""
        result = self.let(f"tl.{'sum' if op == 'mean' else op}({text}, axis={axis.position}{keep})")
        if op == "mean":
            return self.let(f"tl.div_rn({result}, {float(axis.extent)!r})")
        if op != "argmax" and REGISTER[dtype] not in ("tl.float32", "tl.int32", "tl.int64"):
            return self.let(f"{result}.to({REGISTER[dtype]})")
        return result

    def _free_axis(self, extent: int, busy: frozenset[int], node: Node) -> Axis:
        """An axis with `extent` positions along a block dimension that nothing kept varies along."""
        free = [p for p in range(len(self.shape)) if p not in busy]
        if not free:
            raise NoRoomError(f"{node.op} at a place that varies along every block dimension has no row-wise form")
        fits = [p for p in free if self.shape[p] == extent]
        return self.axis(fits[-1] if fits else free[-1], extent)


def axes_of(index: Index) -> frozenset[Axis]:
    """The block axes that an index varies along."""
    return frozenset(v for v in index.variables if isinstance(v, Axis))


def positions_of(index: Index) -> frozenset[int]:
    """Block dimensions along which an index varies."""
    return frozenset(a.position for a in axes_of(index))


def _outer_guards(guards: Sequence[Guard], position: int, busy: frozenset[int]) -> tuple[Guard, ...]:
    """The guards that still hold inside a reduction, whose own axis takes the place of dimension `position`."""
    out = []
    for guard in guards:
        if position not in positions_of(guard.index):
            out.append(guard)
        elif positions_of(guard.index) & busy:
            raise NoRoomError("a reduction inside a concatenation of other axes has no row-wise form")
    return tuple(out)


def _condition(guard: Guard) -> str:
    at = guard.index.text()
    bounds = [f"({at} >= {guard.low})"] if guard.low is not None else []
    bounds += [f"({at} < {guard.high})"] if guard.high is not None else []
    return " & ".join(bounds)


def _expand(position: int, rank: int) -> str:
    return "[" + ", ".join(":" if p == position else "None" for p in range(rank)) + "]"


def _neutral(op: str, dtype: DType) -> str:
    if op in ("tensor.sum", "tensor.mean"):
        return literal(0, dtype)
    if dtype.is_float:
        return literal(float("inf") if op == "tensor.min" else float("-inf"), dtype)
    bits = dtype.itemsize * 8 - (dtype is not DType.U8)
    return str(2**bits - 1 if op == "tensor.min" else 0 if dtype is DType.U8 else -(2**bits))
