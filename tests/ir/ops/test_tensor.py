"""Every `tensor.*` op: its reference against torch, and its inferred type against what the reference returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.registry import all_ops
from inferir.ir.graph.types import TensorType

F32, BF16, I32 = DType.F32, DType.BF16, DType.I32
torch.set_num_threads(1)


def run(op: str, *operands: Any, **attrs: Any) -> torch.Tensor:
    """Apply an op to tensors and Python numbers; the inferred type must be the result's. Axes of size 7 are T."""
    b, inputs, named, values = Builder(), [], {}, []
    for i, operand in enumerate(operands):
        if not isinstance(operand, torch.Tensor):
            values.append(b.scalar(operand))
            continue
        shape = tuple(T if n == 7 else n for n in operand.shape)
        dtype = next(d for d in DType if torch_dtype(d) == operand.dtype)
        inputs.append(b.input(f"x{i}", TensorType(shape, dtype)))
        named[f"x{i}"] = operand
        values.append(inputs[-1])
    result = b.op(op, *values, **attrs)
    if not any(v.type.shape and T in v.type.shape for v in inputs):
        inputs.append(b.input("t", TensorType((T,), I32)))
        named["t"] = torch.zeros(7, dtype=torch.int32)
    out = interpret(Graph(tuple(inputs), (result,)), named)["out0"]
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch_dtype(result.type.dtype)
    assert tuple(out.shape) == result.type.concrete({"T": 7})
    return out


@dataclass(frozen=True)
class Case:
    """`op` with `attrs` on operands made from `shapes` (a number stands for a scalar operand) must equal `expect`."""

    op: str
    shapes: tuple[Any, ...]
    expect: Callable[..., torch.Tensor]
    attrs: dict[str, Any] = field(default_factory=dict)
    positive: bool = False
    dtypes: tuple[DType, ...] = (F32, BF16)


ROW = ((7, 6),)
UNARY = [
    Case("neg", ROW, torch.neg),
    Case("exp", ROW, torch.exp),
    Case("expm1", ROW, torch.expm1),
    Case("log", ROW, torch.log, positive=True),
    Case("sqrt", ROW, torch.sqrt, positive=True),
    Case("rsqrt", ROW, lambda x: x.float().rsqrt().to(x.dtype), positive=True),
    Case("reciprocal", ROW, torch.reciprocal, positive=True),
    Case("abs", ROW, torch.abs),
    Case("floor", ROW, torch.floor),
    Case("sin", ROW, torch.sin),
    Case("cos", ROW, torch.cos),
    Case("tanh", ROW, torch.tanh),
    Case("sigmoid", ROW, torch.sigmoid),
    Case("silu", ROW, F.silu),
    Case("relu", ROW, torch.relu),
    Case("erf", ROW, torch.erf),
    Case("softplus", ROW, F.softplus),
    Case("gelu", ROW, F.gelu, {"approximate": "none"}),
    Case("gelu", ROW, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    Case("cast", ROW, lambda x: x.to(torch.bfloat16), {"dtype": BF16}),
    Case("cast", ROW, lambda x: x.to(torch.int32), {"dtype": I32}),
]
PAIR, BROADCAST = ((7, 6), (7, 6)), ((7, 6), (6,))
BINARY = [
    Case("add", BROADCAST, torch.add),
    Case("sub", ((7, 1), (1, 6)), torch.sub),
    Case("mul", ((7, 6), 0.5), torch.mul),
    Case("div", (1.0, (7, 6)), torch.div, positive=True),
    Case("maximum", PAIR, torch.maximum),
    Case("minimum", ((7, 6), 0.25), lambda a, b: a.clamp(max=b)),
    Case("pow", ((7, 6), 2.0), torch.pow),
    Case("pow", ((7, 6), 3.0), lambda x, e: x.float().pow(e).to(x.dtype)),
    Case("pow", (10000.0, (7, 6)), torch.pow),
    Case("lt", BROADCAST, torch.lt),
    Case("le", ((7, 6), 0.0), torch.le),
    Case("gt", PAIR, torch.gt),
    Case("ge", ((7, 6), 0.0), torch.ge),
    Case("eq", ((7, 6), 0.5), torch.eq),
    Case("ne", PAIR, torch.ne),
]
REDUCTIONS = [
    Case("sum", ROW, lambda x: x.sum(1), {"dims": (-1,), "keepdim": False}),
    Case("sum", ((7, 2, 3),), lambda x: x.sum((0, 2), keepdim=True), {"dims": (0, -1), "keepdim": True}),
    Case("mean", ROW, lambda x: x.mean(1, keepdim=True), {"dims": (1,), "keepdim": True}),
    Case("max", ROW, lambda x: x.amax(1), {"dims": (1,), "keepdim": False}),
    Case("min", ROW, lambda x: x.amin(0), {"dims": (0,), "keepdim": False}),
    Case("argmax", ROW, lambda x: x.argmax(1).int(), {"dim": -1, "keepdim": False}),
    Case("argmax", ROW, lambda x: x.argmax(1, keepdim=True).int(), {"dim": 1, "keepdim": True}),
    Case("softmax", ROW, lambda x: x.softmax(-1), {"dim": -1}),
]
SHAPES = [
    Case("view", ((7, 6),), lambda x: x.view(7, 2, 3), {"shape": (T, 2, 3)}),
    Case("view", ((7, 6),), lambda x: x.view(42), {"shape": (6 * T,)}),
    Case("permute", ((7, 2, 3),), lambda x: x.permute(1, 2, 0), {"perm": (1, 2, 0)}),
    Case("expand", ((7, 1),), lambda x: x.expand(2, 7, 5), {"shape": (2, T, 5)}),
    Case("slice", ((7, 6),), lambda x: x[:, 1:6:2], {"dim": -1, "start": 1, "stop": 6, "step": 2}),
    Case("slice", ((7, 6),), lambda x: x[2:], {"dim": 0, "start": 2, "stop": T}),
    Case("cat", ((7, 2), (7, 3), (7, 2)), lambda *xs: torch.cat(xs, 1), {"dim": 1}),
]
CONTRACTIONS = [
    Case("linear", ((7, 6), (5, 6)), F.linear),
    Case("linear", ((7, 6), (5, 6), (5,)), F.linear),
    Case("matmul", ((2, 1, 7, 6), (3, 6, 4)), torch.matmul),
]
CASES = [*UNARY, *BINARY, *REDUCTIONS, *SHAPES, *CONTRACTIONS]
ELSEWHERE = {
    "logical_and", "logical_or", "logical_not", "where", "embedding", "gather_rows", "arange", "full", "linear_packed",
}  # fmt: skip


def operand(shape: Any, dtype: DType, positive: bool, seed: int) -> Any:
    if not isinstance(shape, tuple):
        return shape
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (x.abs() + 0.1 if positive else x).to(torch_dtype(dtype))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_reference_equals_torch(case: Case, dtype: DType) -> None:
    operands = [operand(s, dtype, case.positive, i) for i, s in enumerate(case.shapes)]
    expect = case.expect(*operands)
    assert torch.equal(run(f"tensor.{case.op}", *operands, **case.attrs), expect)


def test_every_op_has_a_case() -> None:
    defined = {name.removeprefix("tensor.") for name in all_ops() if name.startswith("tensor.")}
    assert {c.op for c in CASES} | ELSEWHERE == defined


def test_logic_and_selection() -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert run("tensor.logical_and", a, b).tolist() == [True, False, False, False]
    assert run("tensor.logical_or", a, b).tolist() == [True, True, True, False]
    assert run("tensor.logical_not", a).tolist() == [False, False, True, True]
    x = torch.arange(4.0)
    assert run("tensor.where", a, x, -math.inf).tolist() == [0.0, 1.0, -math.inf, -math.inf]
    assert run("tensor.where", a, 1.5, x.bfloat16()).tolist() == [1.5, 1.5, 2.0, 3.0]
    assert run("tensor.where", a, 0.0, -math.inf).dtype == torch.float64


def test_gathers() -> None:
    w, ids = torch.randn(9, 4), torch.tensor([[3, 3, 8], [0, 1, 2]], dtype=torch.int32)
    assert torch.equal(run("tensor.embedding", w, ids), F.embedding(ids.long(), w))
    rows = torch.tensor([5, 0, 5], dtype=torch.int32)
    assert torch.equal(run("tensor.gather_rows", w, rows), w[[5, 0, 5]])


def test_sources() -> None:
    assert run("tensor.arange", start=2, stop=T, step=2, dtype=I32).tolist() == [2, 4, 6]
    assert run("tensor.arange", stop=T, dtype=F32).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert torch.equal(
        run("tensor.full", shape=(T, 2), value=-math.inf, dtype=BF16), torch.full((7, 2), -math.inf).bfloat16()
    )
    assert run("tensor.full", shape=(2,), value=True, dtype=DType.BOOL).tolist() == [True, True]
    with pytest.raises(IRError, match="NaN"):
        run("tensor.full", shape=(2,), value=math.nan, dtype=F32)
    data = (1.5, -math.inf, 0.1, 2.0)
    assert torch.equal(run("core.constant", dtype=F32, shape=(2, 2), data=data), torch.tensor(data).view(2, 2))


def test_argmax_takes_the_first_of_equals() -> None:
    x = torch.zeros(3, 100)
    x[1, 40], x[1, 70], x[2, 99] = 1.0, 1.0, 1.0
    assert run("tensor.argmax", x, dim=1, keepdim=False).tolist() == [0, 40, 99]


def test_half_precision_rounds_once_per_op() -> None:
    a, b, c = (operand((64,), BF16, False, i) for i in range(3))
    product = run("tensor.mul", a, b)
    assert torch.equal(product, (a.float() * b.float()).bfloat16())
    assert torch.equal(run("tensor.add", product, c), (product.float() + c.float()).bfloat16())


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "message"),
    [
        ("add", [torch.zeros(7, 6), torch.zeros(7, 5)], {}, "cannot broadcast"),
        ("add", [torch.zeros(7, 6), torch.zeros(7, 6).bfloat16()], {}, r"mixed element types \['bf16', 'f32'\]"),
        ("add", [torch.zeros(7, dtype=torch.int32), 0.5], {}, "float scalar meets i32"),
        ("div", [torch.ones(7, dtype=torch.int32), 2], {}, "i32 operands; insert a cast"),
        ("exp", [torch.ones(7, dtype=torch.int32)], {}, "insert a cast"),
        ("mean", [torch.ones(7, 2, dtype=torch.int32)], {"dims": (1,), "keepdim": False}, "insert a cast"),
        ("where", [torch.ones(7), torch.ones(7), 0.0], {}, "condition is not bool"),
        ("gelu", [torch.ones(7)], {"approximate": "fast"}, "'fast', not"),
        ("sum", [torch.ones(7, 2)], {"dims": (), "keepdim": False}, "no axis"),
        ("softmax", [torch.ones(7, 2)], {"dim": 2}, "axis 2 is out of range for rank 2"),
        ("view", [torch.ones(7, 6)], {"shape": (T, 5)}, "changes the number of elements"),
        ("expand", [torch.ones(7, 6)], {"shape": (T, 12)}, "cannot expand"),
        ("slice", [torch.ones(7, 6)], {"dim": 1, "start": 2, "stop": 9}, r"\[2:9\] is outside 6"),
        ("slice", [torch.ones(7, 6)], {"dim": 1, "start": 0, "stop": 2, "step": 0}, "step 0"),
        ("cat", [torch.ones(7, 6), torch.ones(8, 6)], {"dim": 1}, "beside"),
        ("linear", [torch.ones(7, 6), torch.ones(5, 4)], {}, "inner dimensions 6 and 4 differ"),
        ("linear", [torch.ones(7, 6), torch.ones(5, 6), torch.ones(6)], {}, "bias"),
        ("matmul", [torch.ones(7, 6), torch.ones(5, 4)], {}, "inner dimensions"),
        ("embedding", [torch.ones(9, 6), torch.ones(7)], {}, "embedding of"),
        ("gather_rows", [torch.ones(9, 6), torch.ones(7)], {}, "gather of"),
    ],
)
def test_misuse_is_refused(op: str, operands: list[Any], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(IRError, match=message):
        run(f"tensor.{op}", *operands, **attrs)
