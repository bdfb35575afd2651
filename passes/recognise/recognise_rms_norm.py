"""recognise-rms-norm: root-mean-square norms, with or without weight, in each of their roundings."""

from __future__ import annotations

from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.rewrite import Any_, OneOf, P, Scalar, match, transform
from inferir.passes.context import RAGGED, Pass

_MEAN = P("tensor.mean", P("tensor.mul", Any_("x"), Any_("x")), attrs={"keepdim": True}, name="mean")
_VARIANCE = P("tensor.add", _MEAN, Scalar("eps"))
_INVERSE = OneOf(P("tensor.rsqrt", _VARIANCE), P("tensor.reciprocal", P("tensor.sqrt", _VARIANCE)))
_PLAIN = OneOf(P("tensor.mul", Any_("x"), _INVERSE), P("tensor.div", Any_("x"), P("tensor.sqrt", _VARIANCE)))
_WEIGHTED = P("tensor.mul", P("nn.rms_norm", Any_("x"), name="norm"), Any_("w"))
_SHIFTED = P("tensor.add", Any_("w"), Scalar("offset"))


class RecogniseRmsNorm(Pass):
    """Grows `nn.rms_norm` from the inside out: x·rsqrt(mean(x²)+eps), then the weight (w or w plus a number), then the
    casts around it.

    Which side of the rounding the weight is on is kept (`round_before_weight`). Norms over heads are the same op on [T,
    H, D].
    """

    name = "recognise-rms-norm"
    why = "a norm is one reduction per row for a kernel, instead of eight ops"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        return transform(graph, _visit)


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op in ("tensor.mul", "tensor.div"):
        candidate = rebuild(node, operands).result
        return _weighted(candidate) or _plain(candidate)
    if node.op == "tensor.cast":
        return _cast(rebuild(node, operands).result)
    return None


def _plain(candidate: Value) -> Value | None:
    found = match(_PLAIN, candidate)
    if found is None or found["x"].type.dtype is not DType.F32:
        return None
    x = found["x"]
    if found["mean"].node.attrs["dims"] not in ((-1,), (x.type.rank - 1,)):
        return None
    eps = float(found["eps"].node.attrs["value"])
    return Builder(candidate.node.loc).op("nn.rms_norm", x, eps=eps)


def _weighted(candidate: Value) -> Value | None:
    """(w or w + offset) · norm(x): in float32 the weight meets the unrounded row, in half precision the rounded one."""
    found = match(_WEIGHTED, candidate)
    if found is None:
        return None
    x, norm, w = found["x"], found["norm"], found["w"]
    half = x.type.dtype is not DType.F32
    offset = 0.0
    shifted = match(_SHIFTED, w)
    if shifted is not None:
        w, offset = shifted["w"], float(shifted["offset"].node.attrs["value"])
    if w.op == "tensor.cast" and not half and w.node.operands[0].type.dtype.is_float:
        w = w.node.operands[0]
    if w.type.shape != x.type.shape[-1:]:
        return None
    attrs = norm.node.attrs.replace(offset=offset, round_before_weight=half)
    return Builder(candidate.node.loc).op("nn.rms_norm", x, w, **attrs)


def _cast(candidate: Value) -> Value | None:
    """A norm in float32 between a cast from and a cast to the type of its input."""
    norm = candidate.node.operands[0]
    if norm.op != "nn.rms_norm" or norm.node.operands[0].op != "tensor.cast":
        return None
    x, *rest = norm.node.operands
    source = x.node.operands[0]
    if source.type.dtype is not candidate.type.dtype or not source.type.dtype.is_float:
        return None
    return Builder(candidate.node.loc).op("nn.rms_norm", source, *rest, **norm.node.attrs)
