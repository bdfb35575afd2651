"""The reference interpreter: binding of symbols, weights, nested bodies and what it refuses."""

import pytest
import torch

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Provenance
from inferir.ir.graph.interpreter import interpret, run_body
from inferir.ir.graph.types import TensorType

X = TensorType((T, 4), DType.F32)


def toy() -> Graph:
    b = Builder(Provenance("m", "op"))
    x, rows = b.input("x", X), b.input("rows", TensorType((S,), DType.I32))
    y = b.op("tensor.linear", x, b.weight("w", TensorType((2, 4), DType.F32)))
    index = b.op("tensor.cast", b.op("tensor.arange", stop=T, dtype=DType.I32), dtype=DType.F32)
    z = b.op("tensor.add", y, b.op("tensor.view", index, shape=(T, 1)))
    return Graph((x, rows), (b.op("tensor.gather_rows", z, rows), z), ("picked", "all"))


def test_symbols_are_bound_and_outputs_named() -> None:
    x, w, rows = torch.randn(5, 4), torch.randn(2, 4), torch.tensor([4, 0, 4], dtype=torch.int32)
    out = interpret(toy(), {"x": x, "rows": rows}, {"w": w})
    expect = x @ w.T + torch.arange(5.0)[:, None]
    torch.testing.assert_close(out["all"], expect)
    torch.testing.assert_close(out["picked"], expect[rows.long()])
    assert list(out) == ["picked", "all"]


ROWS = torch.zeros(2, dtype=torch.int32)
W = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("inputs", "weights", "message"),
    [
        ({"rows": ROWS}, {"w": W}, "input 'x' is missing"),
        ({"x": torch.zeros(3, 4), "rows": ROWS}, {}, "weight 'w' is missing"),
        ({"x": torch.zeros(3, 5), "rows": ROWS}, {"w": W}, r"'x' is f32\[T, 4\], given shape \[3, 5\]"),
        ({"x": torch.zeros(3, 4, 1), "rows": ROWS}, {"w": W}, r"given float32\[3, 4, 1\]"),
        ({"x": torch.zeros(3, 4).bfloat16(), "rows": ROWS}, {"w": W}, r"given bfloat16\[3, 4\]"),
        ({"x": torch.zeros(3, 4), "rows": ROWS.long()}, {"w": W}, r"'rows' is i32\[S\], given int64\[2\]"),
        ({"x": torch.zeros(3, 4), "rows": ROWS}, {"w": torch.zeros(3, 4)}, r"'w' is f32\[2, 4\]"),
    ],
)
def test_what_does_not_fit_is_named(
    inputs: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        interpret(toy(), inputs, weights)


def test_a_symbol_has_one_value() -> None:
    b = Builder()
    x, y = b.input("x", X), b.input("y", X)
    g = Graph((x, y), (b.op("tensor.add", x, y),))
    with pytest.raises(IRError, match="'y' has T = 1, but T is 3 already"):
        interpret(g, {"x": torch.zeros(3, 4), "y": torch.zeros(1, 4)})


def test_a_symbol_that_no_input_binds_is_named() -> None:
    b = Builder(Provenance("model.mask", "full"))
    x = b.input("x", X)
    g = Graph((x,), (b.op("tensor.full", shape=(S, 4), value=0.0, dtype=DType.F32),))
    with pytest.raises(IRError, match=r"tensor\.full at model\.mask:full needs 'S', which no input binds"):
        interpret(g, {"x": torch.zeros(3, 4)})


def test_regions_run_their_bodies() -> None:
    b = Builder()
    x = b.input("x", X)
    body = Graph((x,), (b.op("tensor.exp", x), b.op("tensor.sum", x, dims=(1,), keepdim=False)))
    arg = b.input("arg", X)
    node = b.node("kernel.region", (b.op("tensor.neg", arg),), {"anchor": "rowwise", "body": body, "name": "k"})
    t = torch.randn(3, 4)
    out = interpret(Graph((arg,), node.results), {"arg": t})
    torch.testing.assert_close(out["out0"], (-t).exp())
    torch.testing.assert_close(out["out1"], -t.sum(1))
    torch.testing.assert_close(run_body(body, [t])[0], t.exp())


def test_observers_see_every_node_with_its_results() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def observe(node: Node, results: tuple[torch.Tensor, ...]) -> None:
        seen.append((node.op, tuple(results[0].shape)))

    interpret(toy(), {"x": torch.zeros(5, 4), "rows": ROWS}, {"w": W}, observe)
    assert ("tensor.linear", (5, 2)) in seen
    assert [op for op, _ in seen if op == "core.input"] == []
    assert len(seen) == len(toy().nodes) - 2


def test_inputs_are_not_modified() -> None:
    b = Builder()
    x = b.input("x", X)
    t = torch.randn(3, 4)
    kept = t.clone()
    interpret(Graph((x,), (b.op("tensor.neg", b.op("tensor.exp", x)),)), {"x": t})
    assert torch.equal(t, kept)
