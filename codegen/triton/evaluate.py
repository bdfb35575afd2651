"""Statements that compute a value of a region's body at a place: the one mechanism behind every row kernel.

A value of the body has a leading row axis (symbol T or R) and static feature axes, or static axes only (weights). Its
elements at `index`, one `Index` per feature axis, are computed by walking the expression: elementwise ops combine their
operands at the broadcast index, views rewrite the index, a concatenation selects between its parts, gathers load a row
number first, reductions run over a block dimension that the place does not vary along. Inputs of the region are loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.triton.index import Axis, Index, flatten, unflatten
from inferir.codegen.triton.scalar import COMPARISONS, HALF, REGISTER, SELECTIONS, elementwise, literal, power
from inferir.codegen.triton.value import Block, Guards, NoRoomError, Place, memory
from inferir.codegen.triton.views import VIEWS
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node, Value
from inferir.ir.graph.registry import ELEMENTWISE, REDUCTION, has_trait
from inferir.ir.ops.common import axis as normal_axis


@dataclass
class Sweep:
    """Evaluates values in blocks with the dimensions `shape`; statements go to `lines`.

    row: the symbol of the row axis; pointers: parameter of every value that lies in memory; tile: how many positions of
    the first dimension one program holds (None: all); shared: the body has sweeps of other shapes, so that a tile may
    lie wholly past the end.
    """

    row: Dim
    pointers: dict[Value, str]
    shape: tuple[int, ...]
    tile: int | None
    shared: bool
    prefix: str
    lines: list[str] = field(default_factory=list)
    axes: dict[tuple[int, int], Axis] = field(default_factory=dict)
    done: dict[tuple[Value, Place, Guards], Block] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    # --- statements ---

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

    def place(self) -> Place:
        """The index of every element of the sweep."""
        return tuple(Index.of(self.axis(p)) for p in range(len(self.shape)))

    def mask(self, at: Index, guards: Guards = ()) -> tuple[str, str]:
        """The condition under which the elements at memory offset `at` exist, and the text of that offset.

        Only axes that the offset varies along matter; where a guard needs another one, the offset is spread along it.
        """
        axes = at.axes
        used = [g for g in guards if g.index.axes & axes]
        extra = frozenset().union(*(g.index.axes for g in used)) - axes
        spread = "".join(f" + {a.name} * 0" for a in sorted(extra, key=lambda a: a.name))
        bounds = [f"({a.name} < {a.extent})" for a in sorted(axes, key=lambda a: a.name) if a.masked]
        conditions = [*bounds, *(g.text() for g in used)]
        return (self.let(" & ".join(conditions), "m") if conditions else ""), at.text() + spread

    # --- values ---

    def value(self, v: Value, place: Place, guards: Guards = ()) -> Block:
        """`v` at `place`. Raises `CodegenError` naming an op without a form."""
        key = (v, place, guards)
        if key not in self.done:
            self.done[key] = self._value(v, place, guards)
        return self.done[key]

    def _value(self, v: Value, place: Place, guards: Guards) -> Block:
        node = v.node
        if v in self.pointers:
            at = flatten(place, static_shape(v.type, self.row))
            row = f" + row * {prod(static_shape(v.type, self.row))}" if has_row(v.type, self.row) else ""
            return self.load(v, row, at, guards)
        if node.op in VIEWS:
            return VIEWS[node.op](self, node, place, guards)
        if has_trait(node.op, REDUCTION):
            return self._reduce(node, place, guards)
        if has_trait(node.op, ELEMENTWISE):
            return self._elementwise(node, place, guards)
        raise CodegenError(f"{node.op} has no row-wise form")

    def load(self, v: Value, base: str, at: Index, guards: Guards) -> Block:
        """Load elements of an input from `base` (text added to its pointer) + `at`."""
        memory(v.type)
        mask, offset = self.mask(at, guards)
        pointer = f"{self.pointers[v]}{base} + ({offset})" if at.terms or at.offset else f"{self.pointers[v]}{base}"
        text = f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})"
        if v.type.dtype in HALF:
            text += ".to(tl.float32)"
        elif v.type.dtype is DType.BOOL:
            text += " != 0"
        spread = frozenset(a.position for g in guards if g.index.axes & at.axes for a in g.index.axes)
        return Block(self.let(text), at.positions | spread)

    def _elementwise(self, node: Node, place: Place, guards: Guards) -> Block:
        op, out = node.op.removeprefix("tensor."), node.types[0].dtype
        if out not in REGISTER:
            raise CodegenError(f"{node.op}: {out.value} has no Triton form")
        strong = [o.type.dtype for o in node.operands if o.op != "core.scalar"]
        if op == "where":
            strong = strong[1:]  # the condition has a type of its own
        dtype = strong[0] if strong else out
        args = [self._operand(o, node, dtype, place, guards) for o in node.operands]
        positions = frozenset().union(*(a.positions for a in args))
        texts = [a.text for a in args]
        if op == "cast":
            return Block(self._cast(texts[0], dtype, out), positions)
        text = None
        if op == "pow" and node.operands[1].op == "core.scalar":
            text = power(texts[0], node.operands[1].node.attrs["value"])
        name = self.let(text or elementwise(op, texts, node.attrs, dtype))
        return Block(name if op in SELECTIONS else self.rounded(name, out), positions)

    def _operand(self, o: Value, node: Node, dtype: DType, place: Place, guards: Guards) -> Block:
        if o.op == "core.scalar":
            # Where PyTorch rounds the number to the tensor's type first, and where it does not.
            op = node.op.removeprefix("tensor.")
            rounded = op in COMPARISONS or op in SELECTIONS or (op == "pow" and o is node.operands[0])
            return Block(literal(o.node.attrs["value"], dtype, rounded))
        return self.value(o, self.aligned(o, place), guards)

    def aligned(self, o: Value, place: Place) -> Place:
        """The index of an operand that is broadcast to `place`: feature axes align from the right."""
        shape = static_shape(o.type, self.row)
        padded = (*(Index() for _ in range(len(shape) - len(place))), *place)
        return tuple(Index() if d == 1 else i for d, i in zip(shape, padded[len(padded) - len(shape) :], strict=True))

    def rounded(self, name: str, dtype: DType) -> str:
        """Round a register to what `dtype` can store."""
        return self.let(f"{name}.to({HALF[dtype]}).to(tl.float32)") if dtype in HALF else name

    def _cast(self, x: str, source: DType, out: DType) -> str:
        if source not in REGISTER:
            raise CodegenError(f"a cast from {source.value} has no Triton form")
        if out is DType.BOOL:
            return x if source is DType.BOOL else self.let(f"{x} != 0")
        if REGISTER[source] != REGISTER[out]:
            x = self.let(f"{x}.to({REGISTER[out]})")
        return self.rounded(x, out) if source is not out else x

    # --- reductions ---

    def _reduce(self, node: Node, place: Place, guards: Guards) -> Block:
        (x,) = node.operands
        op, dtype = node.op.removeprefix("tensor."), x.type.dtype
        if dtype is DType.BOOL or dtype not in REGISTER:
            raise CodegenError(f"{node.op} of {dtype.value} has no Triton form")
        shape, reduced = static_shape(x.type, self.row), self._reduced(node)
        kept = [i for i in range(len(shape)) if i not in reduced]
        at = dict(zip(kept, [place[i] for i in kept] if node.attrs["keepdim"] else place, strict=True))
        busy = frozenset().union(*(i.positions for i in at.values()))
        axis = self._free_axis(prod(shape[i] for i in reduced), busy, node)
        guards = self._outer_guards(guards, axis.position, busy)
        at.update(zip(reduced, unflatten(Index.of(axis), [shape[i] for i in reduced]), strict=True))
        block = self.value(x, tuple(at[i] for i in range(len(shape))), guards)
        text, positions = block.text, block.positions
        if axis.masked:
            text = self.let(f"tl.where({axis.name} < {axis.extent}, {text}, {_neutral(op, dtype)})")
            positions |= {axis.position}
        if axis.position not in positions:
            sizes = [self._block_size(p) if p in positions else 1 for p in range(len(self.shape))]
            sizes[axis.position] = axis.block
            text = self.let(f"tl.broadcast_to({text}, {sizes})")
        keep = ", keep_dims=True" if len(self.shape) > 1 else ""
        if op == "argmax":
            result = self.let(f"tl.argmax({text}, axis={axis.position}{keep})")
        else:
            fold = "sum" if op == "mean" else op
            result = self.let(f"tl.{fold}({text}, axis={axis.position}{keep})")
            if op == "mean":
                result = self.let(f"tl.div_rn({result}, {float(axis.extent)!r})")
            elif REGISTER[dtype] not in ("tl.float32", "tl.int32", "tl.int64"):
                result = self.let(f"{result}.to({REGISTER[dtype]})")
        return Block(self.rounded(result, node.types[0].dtype), positions - {axis.position})

    def _reduced(self, node: Node) -> list[int]:
        """The feature axes that a reduction runs over."""
        (x,) = node.operands
        dims = node.attrs["dims"] if "dims" in node.attrs else (node.attrs["dim"],)
        skip = 1 if has_row(x.type, self.row) else 0
        out = sorted({normal_axis(d, x.type.rank) - skip for d in dims})
        if out[0] < 0:
            raise CodegenError(f"{node.op} over rows has no row-wise form")
        return out

    def _block_size(self, position: int) -> int:
        return self.axis(position).block

    def _free_axis(self, extent: int, busy: frozenset[int], node: Node) -> Axis:
        """An axis with `extent` positions along a block dimension that nothing kept varies along."""
        free = [p for p in range(len(self.shape)) if p not in busy]
        if not free:
            raise NoRoomError(f"{node.op} at a place that varies along every block dimension has no row-wise form")
        fits = [p for p in free if self.shape[p] == extent]
        return self.axis(fits[-1] if fits else free[-1], extent)

    def _outer_guards(self, guards: Guards, position: int, busy: frozenset[int]) -> Guards:
        """The guards that still hold inside a reduction, whose own axis takes the place of dimension `position`."""
        out = []
        for guard in guards:
            if position not in guard.index.positions:
                out.append(guard)
            elif guard.index.positions & busy:
                raise NoRoomError("a reduction inside a concatenation of other axes has no row-wise form")
        return tuple(out)


def _expand(position: int, rank: int) -> str:
    return "[" + ", ".join(":" if p == position else "None" for p in range(rank)) + "]"


def _neutral(op: str, dtype: DType) -> str:
    if op in ("sum", "mean"):
        return literal(0, dtype)
    if dtype.is_float:
        return literal(float("inf") if op == "min" else float("-inf"), dtype)
    bits = dtype.itemsize * 8 - (dtype is not DType.U8)
    return str(2**bits - 1 if op == "min" else 0 if dtype is DType.U8 else -(2**bits))
