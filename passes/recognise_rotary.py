"""recognise-rotary: rotary position embeddings of whole or partial heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferir.ir.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.ops.common import axis
from inferir.ir.rewrite import Any_, P, match
from inferir.passes.base import TOKEN_MAJOR
from inferir.passes.walk import rebuilt

_TURNED = P("tensor.cat", P("tensor.neg", P("tensor.slice", Any_("x"), name="high")), P("tensor.slice", Any_("x"), name="low"), name="cat")
_ROTARY = P(
    "tensor.add",
    P("tensor.mul", Any_("x"), P("tensor.view", Any_("cos"), name="cos_heads")),
    P("tensor.mul", _TURNED, P("tensor.view", Any_("sin"), name="sin_heads")),
)
_PARTIAL = P("tensor.cat", P("nn.rotary", P("tensor.slice", Any_("x"), name="head"), Any_("cos"), Any_("sin")), P("tensor.slice", Any_("x"), name="tail"), name="cat")


@dataclass(frozen=True)
class RecogniseRotary:
    """x·cos + rotate_half(x)·sin on x [T, H, d] with cos, sin [T, d] becomes `nn.rotary`; so does the same on the first d entries of
    every head with the rest passed through. Interleaved variants stay as they are."""

    name: ClassVar[str] = "recognise-rotary"
    why: ClassVar[str] = "one op instead of slices, negation and concatenation, which a kernel would have to index through"
    requires: ClassVar[frozenset[str]] = frozenset({TOKEN_MAJOR})
    ensures: ClassVar[frozenset[str]] = frozenset()

    def run(self, graph: Graph) -> Graph:
        return rebuilt(graph, _visit)


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op == "tensor.add":
        return _whole(rebuild(node, operands).result)
    if node.op == "tensor.cat" and len(operands) == 2:
        return _partial(rebuild(node, operands).result)
    return None


def _cuts(value: Value, start: object, stop: object) -> bool:
    """`value` is the slice start:stop of the last axis."""
    attrs = value.node.attrs
    rank = value.type.rank
    return axis(attrs["dim"], rank) == rank - 1 and (attrs["start"], attrs["stop"], attrs["step"]) == (start, stop, 1)


def _whole(candidate: Value) -> Value | None:
    found = match(_ROTARY, candidate)
    if found is None:
        return None
    x, cos, sin = found["x"], found["cos"], found["sin"]
    if x.type.rank != 3 or cos.type.rank != 2 or cos.type != sin.type or cos.type.dtype is not x.type.dtype:
        return None
    rows, _, d = x.type.shape
    if not isinstance(d, int) or cos.type.shape != (rows, d) or axis(found["cat"].node.attrs["dim"], 3) != 2:
        return None
    if any(found[k].type.shape != (rows, 1, d) for k in ("cos_heads", "sin_heads")):
        return None
    if not _cuts(found["low"], 0, d // 2) or not _cuts(found["high"], d // 2, d):
        return None
    return Builder(candidate.node.loc).op("nn.rotary", x, cos, sin)


def _partial(candidate: Value) -> Value | None:
    found = match(_PARTIAL, candidate)
    if found is None:
        return None
    x, d = found["x"], found["cos"].type.shape[-1]
    size = x.type.shape[-1]
    if not _cuts(found["head"], 0, d) or not _cuts(found["tail"], d, size) or found["head"].type.shape[-1] != d:
        return None
    return Builder(candidate.node.loc).op("nn.rotary", x, found["cos"], found["sin"])
