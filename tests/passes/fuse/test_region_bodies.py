"""Regions: their names, and bodies that are the same text for equal work in different layers."""

import pytest

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.types import TensorType
from inferir.passes.fuse.grouping import Grouping, find_uses
from inferir.passes.fuse.region_bodies import input_roles, region, region_name

B = Builder()
X = B.input("x", TensorType((T, 1, 4), DType.F32))
SPEC = AttentionSpec(block_size=4, kv_heads=1, head_dim=4, value_dim=4, dtype=DType.F32)
GROUPS = (
    KVCacheGroup(spec=SPEC, layers=(0,), block_tables="tables.0", slots="slots.0", items="items.0"),
    KVCacheGroup(spec=SPEC, layers=(1,), block_tables="tables.1", slots="slots.1", items="items.1"),
)


def written(layer: int) -> tuple[Graph, Value]:
    """A row-wise op and the write of its result to the cache of a layer."""
    cache = B.input(f"kcache.{layer}", TensorType((9, 1, 4, 4, 1), DType.F32))
    slots = B.input(f"slots.{layer}", TensorType((T,), DType.I32))
    weight = B.weight(f"layers.{layer}.w", TensorType((4,), DType.F32))
    view = B.op("tensor.view", B.op("tensor.mul", X, weight), shape=(T, 1, 4))
    out = B.op("kv.write", cache, view, slots, role="k", block_size=4)
    return Graph((X, cache, slots), (out,)), out


def body(layer: int) -> Node:
    graph, out = written(layer)
    groups = Grouping(find_uses(graph, frozenset(), share_lookups=False))
    whole = groups.merge(list(groups.groups.values()))
    env = {v: v for n in graph.nodes for v in n.results}
    return region(whole, groups.uses, [out], env, input_roles(GROUPS))[out].node


def test_layers_share_one_text_and_keep_their_operands() -> None:
    first, second = body(0), body(1)
    assert print_graph(first.attrs["body"]) == print_graph(second.attrs["body"])
    assert first.attrs["body"].input_names == ("x0", "w0", "kcache", "slots")
    assert [v.node.attrs["name"] for v in second.operands] == ["x", "layers.1.w", "kcache.1", "slots.1"]
    assert (first.attrs["anchor"], first.attrs["name"]) == ("rowwise", "mul_kv_write")


def test_the_layer_of_attention_is_left_out() -> None:
    def attention(layer: int) -> str:
        out = B.op("attn.attention", X, X, X, scale=1.0, layer=layer)
        groups = Grouping(find_uses(Graph((X,), (out,)), frozenset(), share_lookups=False))
        return print_graph(region(groups.of[out.node], groups.uses, [out], {X: X}, {})[out].node.attrs["body"])

    assert attention(0) == attention(5)


def test_roles_of_inputs_are_those_of_every_group() -> None:
    roles = input_roles(GROUPS)
    for i in range(2):
        names = [f"tables.{i}", f"slots.{i}", f"items.{i}", f"kcache.{i}", f"vcache.{i}"]
        assert [roles[name] for name in names] == ["block_tables", "slots", "attn_items", "kcache", "vcache"]
    assert roles["ids"] == "ids"


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        (["exp", "exp", "neg"], "exp_neg"),
        (["view", "exp"], "exp"),
        (["view"], "view"),
        (["exp", "neg", "abs", "tanh", "sqrt", "rsqrt"], "exp_neg_abs_tanh_sqrt"),
    ],
)
def test_names_are_made_of_what_is_computed(ops: list[str], name: str) -> None:
    attrs = {"view": {"shape": (T, 1, 4)}}
    assert region_name([B.op(f"tensor.{op}", X, **attrs.get(op, {})).node for op in ops]) == name
