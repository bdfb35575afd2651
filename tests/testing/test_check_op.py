"""`check_op`: every op keeps to it, and planted faults are found with few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from inferir.codegen.lower import numbers
from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Value
from inferir.ir.graph.registry import OpDef, all_ops, opdef
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import real
from inferir.testing import CheckFailedError, check_op
from inferir.testing.op_forms import ELSEWHERE, forms_of
from inferir.testing.op_references import EXPECTED, TRACED

OPS = [
    name
    for name, op in all_ops().items()
    if not op.source and name not in ELSEWHERE and not name.startswith("layout.pack_")
]


@pytest.mark.parametrize("name", OPS)
def test_every_op(name: str) -> None:
    report = check_op(name, backends=(), examples=40)
    assert report.cases >= 10
    assert "what it means" in report.against[name]
    assert ("its decomposition" in report.against[name]) == (opdef(name).decompose is not None)


def test_ops_without_an_import_rule() -> None:
    made_by_passes = {"nn.rms_norm", "nn.rotary", "nn.gated_act", "nn.softcap", "tensor.gather_rows"}
    captured_as_such = {"attn.attention", "tensor.arange", "tensor.full", "tensor.argmax"}
    assert set(OPS) - set(TRACED) == made_by_passes | captured_as_such
    assert set(EXPECTED) == set(OPS)


def test_what_is_checked_elsewhere_is_said() -> None:
    with pytest.raises(IRError, match=r"layout\.pack_panels is not checked by check_op: see `check_format`"):
        check_op("layout.pack_panels")
    with pytest.raises(IRError, match=r"unknown op 'tensor\.nothing'"):
        check_op("tensor.nothing")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OpDef]:
    """`planted(name, **facts)`: an op of its own for this test, a copy of another with other facts."""
    from inferir.ir.graph import registry

    all_ops()

    def plant(name: str, like: str, **facts: Any) -> OpDef:
        op = replace(opdef(like), name=name, **facts)
        monkeypatch.setitem(registry._OPS, name, op)
        return op

    return plant


def test_a_decomposition_that_is_off(planted: Callable[..., OpDef]) -> None:
    def decompose(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
        """x / (1 + exp(x)): a sign is missing."""
        (x,) = operands
        return b.op("tensor.div", x, b.op("tensor.add", b.scalar(1.0), b.op("tensor.exp", x)))

    op = planted("acme.silu", "tensor.silu", decompose=decompose)
    with pytest.raises(CheckFailedError, match=r"acme\.silu in f32 differs from its decomposition") as found:
        check_op(op, backends=())
    assert found.value.graph is not None
    assert [n.op for n in found.value.graph.nodes] == ["core.input", "acme.silu"]
    assert "%x0 = [[1.0]]" in str(found.value), "one number, and a plain one, shows it"


def test_a_meaning_that_is_off(planted: Callable[..., OpDef]) -> None:
    op = planted("acme.cube", "tensor.neg", evaluate=lambda attrs, x: x * x * x.abs())
    with pytest.raises(CheckFailedError, match=r"acme\.cube in f32 is not what it means: 1\.0 instead of -1\.0"):
        check_op(op, backends=(), expected=lambda a, x: x**3)


def test_types_that_are_off(planted: Callable[..., OpDef]) -> None:
    op = planted("acme.floor", "tensor.neg", evaluate=lambda attrs, x: x.floor().int())
    with pytest.raises(CheckFailedError, match=r"is inferred to be f32\[T, 1\], but evaluates to int32\[1, 1\]"):
        check_op(op, backends=())
    op = planted("acme.log", "tensor.log", evaluate=lambda attrs, x: math.log(x.numel()))
    with pytest.raises(CheckFailedError, match=r"evaluates to 0\.0, which is no tensor"):
        check_op(op, backends=())


def test_misuse_that_is_not_refused_in_words(planted: Callable[..., OpDef]) -> None:
    def crashes(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        return TensorType((types[0].shape[0], types[0].shape[1]), real(types, attrs).dtype)

    op = planted("acme.tan", "tensor.tanh", infer=crashes)
    with pytest.raises(
        CheckFailedError, match=r"acme\.tan of \(.*\) must be refused with IRError, but raised IndexError"
    ):
        check_op(op, backends=())


def test_an_import_rule_that_is_gone() -> None:
    with pytest.raises(
        CheckFailedError, match=r"tensor\.tanh: a function that should have it cannot be imported: aten"
    ):
        check_op("tensor.tanh", backends=(), traced=lambda m, x, p: x.sinh(), examples=2)
    with pytest.raises(CheckFailedError, match=r"tensor\.tanh: a function that should have it is imported without it"):
        check_op("tensor.tanh", backends=(), traced=lambda m, x, p: x.sin(), examples=2)


def test_an_op_of_another_shape_needs_its_forms(planted: Callable[..., OpDef]) -> None:
    op = planted("acme.total", "tensor.sum")
    with pytest.raises(IRError, match=r"does not know what acme\.total takes; give it forms="):
        check_op(op, backends=())
    rows = TensorType((T, 6), DType.F32)
    forms = [((rows,), {"dims": (1,), "keepdim": True})]
    report = check_op(op, backends=(), forms=forms, expected=lambda a, x: x.sum(-1, keepdim=True), examples=20)
    assert report.against == {"acme.total": ["what it means"]}
    assert forms_of(opdef("tensor.sum"))


def test_a_kernel_that_rounds_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers beside half precision keep more than they should: the fault that the two walks once had."""
    monkeypatch.setattr(numbers, "stored", lambda value, dtype: value)
    with pytest.raises(CheckFailedError, match=r"tensor\.le in bf16: the kernel for cpu differs") as found:
        check_op("tensor.le", backends=("cpu",), examples=2)
    assert found.value.graph is not None
    assert [n.op for n in found.value.graph.nodes] in (
        ["core.input", "core.scalar", "tensor.le"],
        ["core.scalar", "core.input", "tensor.le"],
    )
    assert "= 0.10009765625" in str(found.value)


def test_kernels_of_ops_on_every_backend() -> None:
    report = check_op(["tensor.exp", "tensor.where", "nn.rotary", "tensor.argmax"], examples=2)
    assert report.kernels["cuda"] > report.kernels["cpu"] > 8
