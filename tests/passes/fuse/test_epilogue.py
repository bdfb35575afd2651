"""What a product does on its accumulators, and why others stay outside."""

import pytest

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.types import TensorType
from inferir.passes.fuse.epilogue import epilogue_of
from inferir.passes.fuse.grouping import Grouping, find_uses

H = 64
B = Builder()
X, Y = (B.input(name, TensorType((T, H), DType.F32)) for name in "xy")
BIAS = B.weight("bias", TensorType((H,), DType.F32))
COLUMN = B.input("column", TensorType((T, 1), DType.F32))


def op(name: str, *operands: Value, **attrs: object) -> Value:
    return B.op(f"tensor.{name}", *operands, **attrs)


def linear(x: Value, n: int = H, interleave: int = 1) -> Value:
    weight = B.weight(f"w{n}", TensorType((n // 64, H, 64, 1), DType.F32))
    return op("linear_packed", x, weight, n=n, interleave=interleave)


P = linear(X)
PAIR = linear(X, 2 * H, interleave=2)
GATE, UP = (op("slice", PAIR, dim=1, start=i * H, stop=(i + 1) * H) for i in range(2))


def found(product: Value, *outputs: Value, views_only: bool = False) -> tuple[list[str], dict[str, str]]:
    grouping = Grouping(find_uses(Graph((X, Y, COLUMN), outputs), frozenset(), share_lookups=False))
    inside, refused = epilogue_of(product.node, grouping, views_only)
    return [n.op.removeprefix("tensor.") for n in inside], {n.op.removeprefix("tensor."): r for n, r in refused.items()}


@pytest.mark.parametrize(
    ("product", "output", "inside"),
    [
        (P, op("neg", op("add", P, BIAS)), ["add", "neg"]),
        (P, op("mul", op("add", P, Y), B.scalar(2.0)), ["add", "mul"]),
        (PAIR, op("mul", op("silu", GATE), UP), ["silu", "mul"]),
    ],
    ids=["bias", "residual and scale", "halves"],
)
def test_what_joins(product: Value, output: Value, inside: list[str]) -> None:
    assert found(product, output) == (inside, {})


@pytest.mark.parametrize(
    ("product", "output", "node", "reason"),
    [
        (P, op("sum", P, dims=(1,), keepdim=True), "sum", "tensor.sum needs more than one element of the product"),
        (P, op("add", P, COLUMN), "add", "an operand has shape [T, 1]"),
        (PAIR, op("neg", PAIR), "neg", "its result has shape [T, 128], not [T, 64]"),
        (P, op("add", P, op("sum", op("exp", P), dims=(1,), keepdim=True)), "add", "another kernel lies between them"),
        (P, op("add", P, linear(op("exp", P))), "add", "another kernel lies between them"),
    ],
    ids=["reduction", "column", "both halves", "between", "another product"],
)
def test_what_stays_outside(product: Value, output: Value, node: str, reason: str) -> None:
    inside, refused = found(product, output)
    assert node not in inside
    assert refused[node] == reason


def test_a_product_is_stored_once() -> None:
    """The product itself leaves the graph, so nothing may follow it in its kernel."""
    stored = "the product would be stored twice or a kernel lies between"
    assert found(P, P, op("neg", P)) == ([], {"neg": stored})


def test_without_fusion_only_views_join() -> None:
    view = op("view", P, shape=(T, 8, 8))
    assert found(P, view, views_only=True) == (["view"], {})
    assert found(P, op("neg", P), views_only=True) == ([], {"neg": "fusion is off"})
