"""ragged-tokens: every value that depends on tokens gets the token axis first, and the batch axis goes away."""

from __future__ import annotations

import math
from collections.abc import Callable

from inferir.ir.errors import PassError
from inferir.ir.graph.dims import Dim, T
from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.registry import OpDef, opdef
from inferir.ir.graph.rewrite import Rebuilder
from inferir.ir.ops.common import axis
from inferir.passes.canonicalise.canonicalise import view_to
from inferir.passes.context import RAGGED, Pass, has_tokens, refuse

Shape = tuple[Dim, ...]


class RaggedTokens(Pass):
    """A captured value of shape s with T at axis p becomes [T] + s without p, without a leading batch axis of size 1.

    The order of the other axes is kept, so a permute that only moves T, and a view that only adds or removes axes,
    vanish. An op that would compute across tokens (a reduction, slice or reshape over T, a second token axis) is
    refused: only attention may mix tokens.
    """

    name = "ragged-tokens"
    why = "a step is a flat list of tokens; kernels want one row per token"
    ensures = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        env: dict[Value, Value] = {}
        for value in graph.inputs:
            if has_tokens(value.type.shape):
                shape = short(value.type.shape, value.node)
                new = Builder(value.node.loc).input(value.node.attrs["name"], type(value.type)(shape, value.type.dtype))
                env[value] = value if shape == value.type.shape else new
        return Rebuilder(graph, env).run(_visit).graph_with()


def token_axis(shape: Shape, node: Node) -> int | None:
    """Index of T in `shape`. Raises `PassError` for two token axes or one that is folded into another."""
    if not has_tokens(shape):
        return None
    at = [i for i, d in enumerate(shape) if d == T]
    if len(at) != 1 or has_tokens(tuple(d for i, d in enumerate(shape) if i != at[0])):
        raise mixes(
            node, f"a value of shape {list(map(str, shape))} has tokens in more than one axis or folded into one"
        )
    return at[0]


def mixes(node: Node, reason: str) -> PassError:
    return refuse(RaggedTokens.name, node, f"{reason}; tokens may only meet in captured attention")


def short(shape: Shape, node: Node) -> Shape:
    """The shape after this pass."""
    p = token_axis(shape, node)
    if p is None:
        return shape
    return (T, *(shape[:p] + shape[p + 1 :])[_batched(shape, p) :])


def _batched(shape: Shape, p: int) -> bool:
    """True for a batch axis of size 1 in front of the token axis p; counts as 1 in index arithmetic."""
    return p > 0 and shape[0] == 1


def full(shape: Shape, p: int) -> Shape:
    """Like `short`, with the batch axis kept: [T] + shape without p."""
    return (T, *shape[:p], *shape[p + 1 :])


def moved(i: int, p: int) -> int:
    """Where axis i goes when axis p moves to the front."""
    return 0 if i == p else i + 1 if i < p else i


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | tuple[Value, ...] | None:
    if not any(has_tokens(t.shape) for t in node.types) and not any(has_tokens(v.type.shape) for v in node.operands):
        return None
    rule = _rule(opdef(node.op))
    if rule is None:
        raise mixes(node, "no rule says that this op keeps tokens apart")
    if token_axis(node.types[0].shape, node) is None:
        raise mixes(node, "the result no longer has the token axis")
    return rule(node, operands, Builder(node.loc))


def _elementwise(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    shape = node.types[0].shape
    p = _axis(node)
    batch = _batched(shape, p)
    new = []
    for old, value in zip(node.operands, operands, strict=True):
        padded = (1,) * (len(shape) - old.type.rank) + old.type.shape
        q = token_axis(padded, node)
        if q not in (None, p):
            raise mixes(node, "operands have the token axis in different places")
        rest = (padded[:p] + padded[p + 1 :])[batch:]
        if q is None and _unpadded(rest) == _unpadded(value.type.shape):
            new.append(value)
        else:
            new.append(view_to(value, (1 if q is None else T, *rest), b))
    return b.op(node.op, *new, **node.attrs)


def _unpadded(shape: Shape) -> Shape:
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def _axis(node: Node) -> int:
    p = token_axis(node.types[0].shape, node)
    assert p is not None
    return p


def _operand_axis(node: Node) -> int:
    p = token_axis(node.operands[0].type.shape, node)
    if p is None:
        raise mixes(node, "the first operand does not depend on tokens but the result does")
    return p


def _view(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    before, after = node.operands[0].type.shape, node.types[0].shape
    p, q = _operand_axis(node), _axis(node)
    if math.prod(before[:p]) != math.prod(after[:q]):
        raise mixes(node, f"view from {list(map(str, before))} to {list(map(str, after))} reshapes across tokens")
    return view_to(operands[0], short(after, node), b)


def _permute(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    shape = node.operands[0].type.shape
    p = _operand_axis(node)
    perm = node.attrs["perm"]
    batch = _batched(shape, p) and perm[0] == 0
    value = view_to(operands[0], short(shape, node) if batch else full(shape, p), b)
    order = [moved(i, p) - batch for i in perm if i != p and not (batch and i == 0)]
    kept = [i for i in order if value.type.shape[i] != 1]
    if kept != sorted(kept):
        value = b.op("tensor.permute", value, perm=(0, *order))
    return view_to(value, short(node.types[0].shape, node), b)


def _along(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    """Ops with an axis attribute (reductions, softmax, slice, cat)."""
    p = _operand_axis(node)
    shape = node.operands[0].type.shape
    key = "dims" if "dims" in node.attrs else "dim"
    axes = [axis(d, len(shape)) for d in (node.attrs[key] if key == "dims" else (node.attrs[key],))]
    if p in axes:
        raise mixes(node, "it works along the token axis")
    batch = _batched(shape, p) and 0 not in axes
    new = []
    for old, value in zip(node.operands, operands, strict=True):
        if token_axis(old.type.shape, node) != p:
            raise mixes(node, "operands have the token axis in different places")
        new.append(view_to(value, short(old.type.shape, node) if batch else full(old.type.shape, p), b))
    out = tuple(moved(i, p) - batch for i in axes)
    attrs = node.attrs.replace(**{key: out if key == "dims" else out[0]})
    return view_to(b.op(node.op, *new, **attrs), short(node.types[0].shape, node), b)


def _expand(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    shape = node.types[0].shape
    p = _axis(node)
    old = node.operands[0].type.shape
    padded = (1,) * (len(shape) - len(old)) + old
    q = token_axis(padded, node)
    if q not in (None, p):
        raise mixes(node, "the token axis moves")
    rest = (padded[:p] + padded[p + 1 :])[_batched(shape, p) :]
    value = view_to(operands[0], (1 if q is None else T, *rest), b)
    out = short(shape, node)
    return value if value.type.shape == out else b.op("tensor.expand", value, shape=out)


def _last_axis(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    """linear and norms: they work on the last axis only."""
    if _operand_axis(node) == node.operands[0].type.rank - 1 or any(
        has_tokens(v.type.shape) for v in node.operands[1:]
    ):
        raise mixes(node, "it works along the token axis")
    return rebuild(node, operands).result


def _matmul(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    rank = node.types[0].rank
    p = _axis(node)
    if p >= rank - 2 or any(v.type.rank != rank or token_axis(v.type.shape, node) != p for v in node.operands):
        raise mixes(node, "it multiplies along the token axis")
    new = [view_to(v, full(old.type.shape, p), b) for old, v in zip(node.operands, operands, strict=True)]
    return view_to(b.op("tensor.matmul", *new), short(node.types[0].shape, node), b)


def _lookup(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    if has_tokens(node.operands[0].type.shape):
        raise mixes(node, "the table depends on tokens")
    return rebuild(node, operands).result


def _attention(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    if _axis(node) != 0:
        raise mixes(node, "captured attention expects [T, heads, size]")
    return rebuild(node, operands).result


def _full(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    return b.op("tensor.full", **node.attrs.replace(shape=short(node.types[0].shape, node)))


def _arange(node: Node, operands: tuple[Value, ...], b: Builder) -> Value:
    raise refuse(RaggedTokens.name, node, "positions are taken from the order of tokens, not from the positions given")


Rule = Callable[[Node, tuple[Value, ...], Builder], Value]

_SHAPES: dict[str, Rule] = {
    "tensor.view": _view,
    "tensor.permute": _permute,
    "tensor.expand": _expand,
    "tensor.matmul": _matmul,
    "tensor.full": _full,
    "tensor.arange": _arange,
}
"""Ops whose attributes or operands say where the token axis is, each in its own way."""


def _rule(op: OpDef) -> Rule | None:
    """How the token axis moves through an op, from what is known of it; None if nothing says that it may."""
    if op.name in _SHAPES:
        return _SHAPES[op.name]
    known = (
        (op.elementwise, _elementwise),
        (op.axes is not None, _along),
        (op.last_axis, _last_axis),
        (op.lookup, _lookup),
        (op.mixes_rows, _attention),
    )
    return next((rule for holds, rule in known if holds), None)
