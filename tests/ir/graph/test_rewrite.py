"""Replacing values, rebuilding graphs and matching patterns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.rewrite import Any_, OneOf, Opt, P, Rebuilder, Scalar, match, transform
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify

X = TensorType((T, 4), DType.F32)
B = Builder()


def ops(graph: Graph) -> list[str]:
    return [n.op.removeprefix("tensor.") for n in graph.nodes]


def run(graph: Graph, **inputs: torch.Tensor) -> list[torch.Tensor]:
    verify(graph)
    return list(interpret(graph, inputs).values())


def test_values_are_mapped_and_dead_nodes_vanish() -> None:
    x = B.input("x", X)
    y = B.op("tensor.exp", x)
    other = B.input("other", X)
    walk = Rebuilder(Graph((x,), (B.op("tensor.neg", y), y), ("z", "y")), {x: other})
    g = walk.run(lambda node, operands: B.op("tensor.abs", *operands) if node.op == "tensor.exp" else None).graph_with()
    assert ops(g) == ["core.input", "abs", "neg"]
    assert (g.input_names, g.output("y").op) == (("other",), "tensor.abs")


def test_inputs_and_outputs_are_added_behind_the_old_ones() -> None:
    x, more = B.input("x", X), B.input("more", X)
    walk = Rebuilder(Graph((x,), (B.op("tensor.exp", x),), ("y",), "main"))
    g = walk.run(lambda node, operands: None).graph_with((more,), {"more": B.op("tensor.neg", more)})
    assert (g.input_names, g.output_names, g.name) == (("x", "more"), ("y", "more"), "main")


def test_nodes_with_several_results_are_replaced_as_a_whole() -> None:
    x, arg = B.input("x", X), B.input("arg", X)
    body = Graph((x,), (B.op("tensor.exp", x), B.op("tensor.neg", x)))
    node = B.node("kernel.region", (arg,), {"anchor": "rowwise", "body": body, "name": "k"})
    g = Graph((arg,), (B.op("tensor.add", *node.results), node.results[1]))
    swapped = transform(g, lambda n, operands: n.results[::-1] if n is node else None)
    t = torch.randn(3, 4)
    torch.testing.assert_close(run(swapped, arg=t), [t.exp() - t, t.exp()])


def test_transform_replaces_results_of_nodes_bottom_up() -> None:
    x = B.input("x", X)
    g = Graph((x,), (B.op("tensor.exp", B.op("tensor.exp", x)),), name="before")
    seen: list[str] = []

    def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
        if node.op != "tensor.exp":
            return None
        seen.append(operands[0].op)
        return B.op("tensor.neg", operands[0])

    out = transform(g, visit)
    assert ops(out) == ["core.input", "neg", "neg"]
    assert seen == ["core.input", "tensor.neg"]
    assert out.name == "before"
    assert transform(g, lambda node, operands: None) is g, "nothing changed"


def test_deep_graphs_do_not_recurse() -> None:
    x = v = B.input("x", X)
    for _ in range(3000):
        v = B.op("tensor.neg", v)
    g = transform(Graph((x,), (v,)), lambda node, operands: B.op("tensor.abs", *operands) if operands else None)
    assert ops(g)[1:] == ["abs"] * 3000


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_replacing_values_by_equal_ones_keeps_results(data: st.DataObject) -> None:
    """Any set of computed values v becomes -(-v); nothing else may change."""
    x, y = B.input("x", X), B.input("y", X)
    pool = [x, y]
    for _ in range(data.draw(st.integers(1, 8))):
        op = data.draw(st.sampled_from(["tensor.tanh", "tensor.add", "tensor.mul"]))
        args = [data.draw(st.sampled_from(pool)) for _ in range(1 if op == "tensor.tanh" else 2)]
        pool.append(B.op(op, *args))
    outputs = tuple(data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3)))
    chosen = data.draw(st.lists(st.sampled_from(pool[2:]), unique=True))
    g = Graph((x, y), outputs)

    def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
        if node.result not in chosen:
            return None
        return B.op("tensor.neg", B.op("tensor.neg", rebuild(node, operands).result))

    out = transform(g, visit)
    assert ops(out).count("neg") == 2 * sum(v.node in g.nodes for v in chosen)
    tensors = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    torch.testing.assert_close(run(out, **tensors), list(interpret(g, tensors).values()), rtol=0, atol=0)


def test_patterns_capture_and_compare_attributes() -> None:
    x = B.input("x", X)
    mean = B.op("tensor.mean", B.op("tensor.mul", x, x), dims=(-1,), keepdim=True)
    root = B.op("tensor.rsqrt", B.op("tensor.add", mean, B.scalar(1e-6)))
    square = P("tensor.mul", Any_("x"), Any_("x"))
    pattern = P(
        "tensor.rsqrt", P("tensor.add", Scalar("eps"), P("tensor.mean", square, attrs={"dims": (-1,)}, name="mean"))
    )
    found = match(pattern, root)
    assert found is not None
    assert (found["x"], found["mean"], found["eps"].node.attrs["value"]) == (x, mean, 1e-6)
    assert match(P("tensor.rsqrt", P("tensor.add", Any_(""), Scalar(value=1.0))), root) is None
    assert match(P("tensor.mean", square, attrs={"dims": (0,)}), mean) is None
    assert match(P("tensor.mean"), mean) == {}


def test_the_same_name_must_match_the_same_value() -> None:
    x, y = B.input("x", X), B.input("y", X)
    pattern = P("tensor.mul", Any_("a"), Any_("a"))
    assert match(pattern, B.op("tensor.mul", x, x)) == {"a": x}
    assert match(pattern, B.op("tensor.mul", x, y)) is None


@pytest.mark.parametrize("flip_inner", [False, True])
@pytest.mark.parametrize("flip_outer", [False, True])
def test_commutative_operands_match_in_any_order(flip_inner: bool, flip_outer: bool) -> None:
    x, y = B.input("x", X), B.input("y", X)
    product = B.op("tensor.mul", *((y, x) if flip_inner else (x, y)))
    total = B.op("tensor.add", *((x, product) if flip_outer else (product, x)))
    found = match(P("tensor.add", P("tensor.mul", Any_("a"), Any_("b")), Any_("a")), total)
    assert found == {"a": x, "b": y}
    assert match(P("tensor.sub", Any_("a"), Scalar()), B.op("tensor.sub", B.scalar(1.0), x)) is None


def test_optional_ops_and_alternatives() -> None:
    x = B.input("x", X)
    cast = B.op("tensor.cast", x, dtype=DType.BF16)
    pattern = P("tensor.exp", Opt("tensor.cast", Any_("x", where=lambda v: v.op == "core.input")))
    assert match(pattern, B.op("tensor.exp", cast)) == {"x": x}
    assert match(pattern, B.op("tensor.exp", x)) == {"x": x}
    assert match(pattern, B.op("tensor.exp", B.op("tensor.neg", x))) is None
    either = OneOf(P("tensor.exp", Any_("x")), P("tensor.neg", Any_("x"), name="n"))
    assert match(either, B.op("tensor.exp", x)) == {"x": x}
    negated = B.op("tensor.neg", x)
    assert match(either, negated) == {"x": x, "n": negated}
    assert match(either, cast) is None
