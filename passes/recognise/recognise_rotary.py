"""recognise-rotary: rotary position embeddings of whole or partial heads."""

from __future__ import annotations

from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.rewrite import Any_, Opt, P, match, transform
from inferir.ir.ops.common import axis
from inferir.passes.context import RAGGED, Pass

_TURNED = P(
    "tensor.cat",
    P("tensor.neg", P("tensor.slice", Any_("base"), name="high")),
    P("tensor.slice", Any_("base"), name="low"),
    name="cat",
)
_ROTARY = P(
    "tensor.add",
    P("tensor.mul", Any_("x"), P("tensor.view", Any_("cos"), name="cos_heads")),
    P("tensor.mul", Opt("tensor.cast", _TURNED), P("tensor.view", Any_("sin"), name="sin_heads")),
)
_PARTIAL = P(
    "tensor.cat",
    P("nn.rotary", P("tensor.slice", Any_("x"), name="head"), Any_("cos"), Any_("sin")),
    P("tensor.slice", Any_("x"), name="tail"),
)


class RecogniseRotary(Pass):
    """x·cos + rotate_half(x)·sin on x [T, H, d] with cos, sin [T, d] becomes `nn.rotary`; so does the same on the first
    d entries of every head with the rest passed through. Interleaved variants stay as they are.
    """

    name = "recognise-rotary"
    why = "one op instead of slices, negation and concatenation, which a kernel would have to index through"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        return transform(graph, _visit)


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op == "tensor.add":
        return _whole(rebuild(node, operands).result)
    if node.op == "tensor.cat" and len(operands) == 2:
        return _partial(rebuild(node, operands).result)
    return None


def _cut(value: Value) -> tuple[int, int] | None:
    """(start, stop) of a slice of the last axis with step 1, else None."""
    attrs, last = value.node.attrs, value.type.rank - 1
    start, stop = attrs["start"], attrs["stop"]
    if axis(attrs["dim"], value.type.rank) != last or attrs["step"] != 1 or not isinstance(stop, int):
        return None
    return start, stop


def _start(x: Value, base: Value) -> int | None:
    """Where the last axis of `x` begins in `base`, if x is base or a slice of it."""
    if x.op == "tensor.cast" and base.type.dtype is not x.type.dtype:
        x = x.node.operands[0]
    if x is base:
        return 0
    if x.op == "tensor.slice" and x.node.operands[0] is base:
        cut = _cut(x)
        return cut[0] if cut is not None else None
    return None


def _whole(candidate: Value) -> Value | None:
    found = match(_ROTARY, candidate)
    if found is None:
        return None
    x, cos, sin = found["x"], found["cos"], found["sin"]
    if x.type.rank != 3 or cos.type.rank != 2 or cos.type != sin.type or cos.type.dtype is not x.type.dtype:
        return None
    rows, _, d = x.type.shape
    if not isinstance(d, int) or d % 2 or cos.type.shape != (rows, d) or axis(found["cat"].node.attrs["dim"], 3) != 2:
        return None
    if any(found[k].type.shape != (rows, 1, d) for k in ("cos_heads", "sin_heads")):
        return None
    start = _start(x, found["base"])
    if (
        start is None
        or _cut(found["low"]) != (start, start + d // 2)
        or _cut(found["high"]) != (start + d // 2, start + d)
    ):
        return None
    return Builder(candidate.node.loc).op("nn.rotary", x, cos, sin)


def _partial(candidate: Value) -> Value | None:
    found = match(_PARTIAL, candidate)
    if found is None or axis(candidate.node.attrs["dim"], candidate.type.rank) != candidate.type.rank - 1:
        return None
    x, head, tail = found["x"], _cut(found["head"]), _cut(found["tail"])
    if head is None or tail is None or head[1] != tail[0]:
        return None
    b = Builder(candidate.node.loc)
    if (head[0], tail[1]) != (0, x.type.shape[-1]):
        x = b.op("tensor.slice", x, dim=x.type.rank - 1, start=head[0], stop=tail[1])
    return b.op("nn.rotary", x, found["cos"], found["sin"])
