"""Ops that a backend writes by forms of other distributions, and those that decompose instead."""

from __future__ import annotations

import pytest
from plugin_distributions import Plugged

from inferir.codegen.lower.decompose import decompose
from inferir.codegen.lower.forms import Written, forms
from inferir.codegen.triton import scalar as triton
from inferir.codegen.tvm import scalar as tvm
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType
from inferir.ir.plugin_registry import PluginWarning

CODE = (
    "def form(node, args, dtype, *lanes):\n    return f'act({args[0]}, {dtype.value}, {node.op}{lanes})'\nNUMBER = 7\n"
)


def gated() -> Graph:
    b = Builder()
    x, y = (b.input(name, TensorType((T, 8), DType.F32)) for name in "xy")
    return Graph((x, y), (b.op("nn.gated_act", x, y, kind="silu"),))


def test_an_op_with_a_form_does_not_decompose(plugged: Plugged) -> None:
    registry = forms("some_ops", "form of the op")
    plugged([registry], "acme", CODE, some_ops={"nn.gated_act": "form"})
    written = Written(frozenset({"tensor.mul"}), registry)
    assert ("tensor.mul" in written, "nn.gated_act" in written, "tensor.add" in written) == (True, True, False)
    assert written.form("tensor.mul") is None
    assert [n.op for n in decompose(gated(), written).nodes[2:]] == ["nn.gated_act"]


def test_a_form_that_cannot_be_used_is_left_out_with_a_warning(plugged: Plugged) -> None:
    registry = forms("some_ops", "form of the op")
    plugged([registry], "acme", CODE, some_ops={"nn.gated_act": "NUMBER"})
    written = Written(frozenset(), registry)
    with pytest.warns(PluginWarning, match=r"the form of the op 'nn\.gated_act' of acme 1\.5 is left out"):
        assert "nn.gated_act" not in written
    assert "tensor.mul" in {n.op for n in decompose(gated(), written).nodes}


def test_both_backends_ask_for_forms(plugged: Plugged) -> None:
    plugged([tvm.FORMS, triton.FORMS], "acme", CODE, tvm_ops={"nn.a": "form"}, triton_ops={"nn.b": "form"})
    a, b = (Node(name, (), gated().nodes[0].attrs, (TensorType((T,), DType.F32),)) for name in ("nn.a", "nn.b"))
    assert tvm.elementwise(a, ["x"], DType.F32, 16) == "act(x, f32, nn.a(16,))"
    assert triton.elementwise(b, ["x"], DType.F32) == "act(x, f32, nn.b())"
