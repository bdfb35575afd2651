"""The state of an import: where a node comes from, and what its operands become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

from inferir.frontend.capture.hooks import MaskSpec
from inferir.frontend.capture.importer import MAX_CONSTANT, Importer, module_path, rule, source_line
from inferir.ir.errors import IRError, UntraceableError
from inferir.ir.graph.dims import T

TRACE = """  File "/lib/site-packages/torch/nn/modules/module.py", line 12, in call
    return forward(x)
  File "/lib/site-packages/transformers/models/x.py", line 34, in forward
    y = x.exp()
"""


def node(**meta: Any) -> Any:
    return SimpleNamespace(meta=meta, target="aten.exp.default", name="exp", args=())


@pytest.fixture
def imp() -> Importer:
    out = Importer(sympy.Symbol("s0"))
    out.node = node(stack_trace=TRACE, nn_module_stack={"a": ("model.", None), "b": ("model.layers.1", None)})
    return out


def test_the_innermost_module_and_line_are_named(imp: Importer) -> None:
    assert module_path(imp.node) == "layers.1"
    assert source_line(imp.node) == "transformers/models/x.py:34: y = x.exp()"
    message = "aten.exp.default in module 'layers.1' (transformers/models/x.py:34: y = x.exp()): no"
    assert str(imp.refuse("no")) == message


def test_what_is_not_known_is_left_out(imp: Importer) -> None:
    imp.node = node(nn_module_stack={"a": ("other.part", None)})
    assert (module_path(imp.node), source_line(imp.node)) == ("", "")
    assert str(imp.refuse("no")) == "aten.exp.default in module '(top)': no"


def test_sizes_are_polynomials_of_the_token_count(imp: Importer) -> None:
    assert imp.dim(7) == 7
    assert imp.dim(2 * imp.symbol + 1) == 2 * T + 1
    with pytest.raises(UntraceableError, match="is not a simple function of the number of tokens"):
        imp.dim(sympy.floor(imp.symbol / 2))


def test_constants_are_held_once_and_numbers_are_scalars(imp: Importer) -> None:
    tensor = torch.ones(2, 3)
    assert imp.value(tensor) is imp.value(tensor)
    assert list(imp.constants) == ["const.layers.1.exp"]
    assert imp.value(torch.tensor(2.0)) is imp.scalar(2.0)
    assert imp.value(1) is not imp.value(True)


def test_what_is_no_tensor_is_refused(imp: Importer) -> None:
    with pytest.raises(UntraceableError, match="an attention mask is used outside attention"):
        imp.value(MaskSpec(causal=True))
    with pytest.raises(UntraceableError, match="the operand None is not a tensor"):
        imp.value(None)
    with pytest.raises(UntraceableError, match="is too large to embed"):
        imp.value(torch.empty(MAX_CONSTANT + 1, device="meta"))


def test_an_operator_has_one_rule() -> None:
    with pytest.raises(IRError, match=r"two import rules for aten\.exp\.default"):
        rule("aten.exp.default")(lambda imp, x: x)
