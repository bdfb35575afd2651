"""What passes share: options, refusals, and how nodes are named in messages."""

import pytest

from inferir.ir.errors import PassError
from inferir.ir.graph.dims import R, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Provenance
from inferir.ir.graph.types import TensorType
from inferir.passes.context import PassContext, PassOptions, Refusal, describe, has_tokens, refuse

X = Builder().input("x", TensorType((T, 4), DType.F32))


@pytest.mark.parametrize(
    ("shape", "depends"),
    [((T,), True), ((1, 2 * T, 4), True), ((4, T + R), True), ((R, 4), False), ((4, 4), False), ((), False)],
)
def test_shapes_that_depend_on_tokens(shape: tuple[object, ...], depends: bool) -> None:
    assert has_tokens(shape) is depends


@pytest.mark.parametrize(
    ("loc", "described", "message"),
    [
        (Provenance("layers.3.mlp", "aten.exp"), "layers.3.mlp tensor.exp", "p: tensor.exp in layers.3.mlp: why"),
        (Provenance(), "? tensor.exp", "p: tensor.exp in the graph: why"),
    ],
)
def test_messages_name_op_and_module(loc: Provenance, described: str, message: str) -> None:
    node = Builder(loc).op("tensor.exp", X).node
    assert describe(node) == described
    error = refuse("p", node, "why")
    assert isinstance(error, PassError)
    assert str(error) == message


def test_a_refusal_is_recorded_once() -> None:
    context = PassContext()
    for reason in ("one", "two", "one"):
        context.refuse("fuse", "m tensor.exp", reason)
    assert context.refusals == [Refusal("fuse", "m tensor.exp", "one"), Refusal("fuse", "m tensor.exp", "two")]
    assert str(context.refusals[1]) == "fuse: m tensor.exp: two"


@pytest.mark.parametrize("level", [-1, 4])
def test_levels_are_0_to_3(level: int) -> None:
    assert [PassOptions(opt_level=good).opt_level for good in range(4)] == [0, 1, 2, 3]
    with pytest.raises(PassError, match=f"opt_level is {level}"):
        PassOptions(opt_level=level)
