"""Every import rule against PyTorch, on small functions of x [1, T, 8] and positions [1, T]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as nnf

from inferir.frontend.capture import aten
from inferir.frontend.capture.import_program import UnsupportedOperatorError
from inferir.frontend.capture.importer import RULES
from inferir.ir.errors import UntraceableError
from inferir.ir.graph.dtypes import DType

Capture = Callable[..., Any]


def _written(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Slices of features that are added to, and copied into, in place."""
    y = x * 1
    y[..., 2:5] += b[:3]
    y[..., -2:] = x[..., :2]
    y[..., :1] = b[0]
    y[..., 5:6] = 4.0
    return y


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "unary": lambda m, x, p: x.sin() + x.cos() - x.tanh().exp() * x.sigmoid().neg() + x.erf(),
    "roots": lambda m, x, p: (x * x + 1).sqrt() + (x.square() + 2).rsqrt() + (x.abs() + 1).reciprocal(),
    "logarithm": lambda m, x, p: (x.abs() + 1).log(),
    "activations": lambda m, x, p: (
        nnf.silu(x) + nnf.relu(x) + nnf.gelu(x) + nnf.gelu(x, approximate="tanh") + nnf.softplus(x)
    ),
    "powers": lambda m, x, p: x**2 + x**3 + (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -0.5 + (x.abs() + 1) ** -1,
    "other powers": lambda m, x, p: (x.abs() + 1) ** 1.7 + (x.abs() + 1) ** m.b + 2.0**x,
    "scalars": lambda m, x, p: 3 - x * 2 / 5 + torch.add(x, x, alpha=3) - torch.sub(x, m.b, alpha=2),
    "reversed difference": lambda m, x, p: torch.rsub(x, m.b, alpha=2) + torch.rsub(x, 1.5),
    "clamp": lambda m, x, p: (
        x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=0.2) + x.clamp_max(0.3) + x.clamp_min(0.0)
    ),
    "extrema": lambda m, x, p: torch.maximum(x, m.b) + torch.minimum(x, m.b) + x.max(m.b) - x.min(m.b),
    "where": lambda m, x, p: torch.where(x > 0, x, m.b) + torch.where(x < 0, x, 0.5) + torch.where(x <= 0, 2.0, x),
    "masked fill": lambda m, x, p: x.masked_fill(x >= 0.3, -1.0).masked_fill(~(x == x), 0.0),
    "logic": lambda m, x, p: x * ((x > 0) & (m.b > 0) | (x != m.b)).to(x.dtype) * torch.logical_not(x > 1).float(),
    "comparisons": lambda m, x, p: (
        x * ((x < m.b).float() + (x <= m.b) + (x > m.b) + (x >= m.b) + (x == m.b) + (x != 0.5))
    ),
    "logic by name": lambda m, x, p: (
        torch.logical_and(x > 0, m.b > 0) * x
        + torch.logical_or(x > 0, m.b > 0) * m.b
        + torch.bitwise_and(x > 0, m.b < 0) * x
        + torch.bitwise_or(x > 0, m.b < 0) * x
    ),
    "choice of numbers": lambda m, x, p: x * torch.where(x > 0, 1.5, -0.5) + x.masked_fill(x > 0, torch.tensor(2.0)),
    "expm1 and floor": lambda m, x, p: x.expm1() + (3 * x).floor() * m.b + (x / 1000).expm1() * 100,
    "multiply": lambda m, x, p: torch.multiply(x, m.b) + torch.multiply(x, 3),
    "spread": lambda m, x, p: (
        x * x.std(-1, keepdim=True)
        + x.var(dim=-1, keepdim=True, unbiased=False)
        + torch.std(x, dim=2, keepdim=True, correction=0)
        + x.view(1, -1, 2, 4).var((2, 3), correction=3).unsqueeze(-1)
    ),
    "parts written in place": lambda m, x, p: _written(x, m.b),
    "whole reductions": lambda m, x, p: x - x.mean() + x.sum() / 100,
    "reductions": lambda m, x, p: x * x.mean(-1, keepdim=True) + x.sum(dim=2, keepdim=True) - x.amax(-1, keepdim=True),
    "more reductions": lambda m, x, p: (
        x - x.amin([-1], keepdim=True) + x.softmax(-1) + nnf.softmax(x, 2, dtype=torch.float32)
    ),
    "layer norm": lambda m, x, p: (
        nnf.layer_norm(x, (8,), m.w[0], m.b, 1e-5) + nnf.layer_norm(x, (8,), m.b) + nnf.layer_norm(x, (8,))
    ),
    "rms norm": lambda m, x, p: nnf.rms_norm(x, (8,), m.b, 1e-6) + nnf.rms_norm(x, (8,)),
    "reshapes": lambda m, x, p: (
        x.view(1, -1, 2, 4).flatten(2).unsqueeze(0).squeeze(0).reshape(x.shape[0], x.shape[1], 8)
    ),
    "more reshapes": lambda m, x, p: x.unflatten(2, (4, 2)).view_as(x.view(1, -1, 4, 2)).reshape(1, x.shape[1], 8),
    "named layer norm": lambda m, x, p: torch.native_layer_norm(x, [8], m.b, m.w[1], 1e-5)[0],
    "squeezes": lambda m, x, p: torch.concat([x.unsqueeze(0).squeeze().reshape(1, -1, 8), x[None].squeeze([0])], 1)[
        :, 1:
    ],
    "permutations": lambda m, x, p: (x.transpose(1, 2).permute(0, 2, 1).swapaxes(0, 1).transpose(-3, -2)) @ m.w.T.t(),
    "expansion": lambda m, x, p: x[:, :, None, :].expand(-1, -1, 3, -1).sum(2) + m.b.expand_as(x),
    "slices": lambda m, x, p: torch.cat((-x[..., 4:], x[..., :4]), -1) + torch.cat([x[..., ::2], x[..., 1::2]], dim=2),
    "negative slices": lambda m, x, p: x[..., -3:].repeat_interleave(2, dim=-1) + x[..., :-2],
    "repeats": lambda m, x, p: x[..., :4].repeat(1, 1, 2) + m.b.repeat(1, 1, 1) + m.b[:2].repeat(1, 1, 4),
    "selection": lambda m, x, p: x[..., 0, None] + x[..., -1:] + x[0, :, 3][None, :, None] * x,
    "splits": lambda m, x, p: (
        (lambda a, b: nnf.silu(a) * b)(*x.chunk(2, -1)) + x.split([4, 4], -1)[1] + x.split(4, dim=-1)[0]
    ),
    "stack": lambda m, x, p: (
        torch.stack([x, -x], -1).flatten(-2) + torch.stack(x.unbind(-1)[:2], dim=-1).repeat_interleave(8, -1)
    ),
    "linear": lambda m, x, p: nnf.linear(x, m.u) + nnf.linear(x, m.u, m.b[:6]),
    "addmm": lambda m, x, p: torch.addmm(m.b, x[0], m.w)[None] + torch.mm(x[0], m.w)[None],
    "matmul": lambda m, x, p: torch.matmul(x, m.w) + torch.bmm(x.transpose(1, 2).transpose(1, 2), m.w[None]),
    "outer product": lambda m, x, p: x * torch.matmul(p[:, :, None].float(), m.c[None, None, :]).cos(),
    "positions": lambda m, x, p: (
        x * (p[..., None] * 0.1 + 1).log() + (p.float() / 7)[..., None] + (p + 2)[..., None] * x
    ),
    "position table": lambda m, x, p: x + nnf.embedding(p + 2, m.table.weight) + m.table.weight[p],
    "integer tests": lambda m, x, p: x * (p >= 3)[..., None] + torch.where((p == 2)[..., None], x, 0.0),
    "index select": lambda m, x, p: x * m.b.index_select(0, torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])),
    "likes": lambda m, x, p: torch.full_like(x, 2.0) * x + torch.zeros_like(x) + torch.ones_like(x),
    "no-ops": lambda m, x, p: nnf.dropout(x.clone().detach().contiguous(), 0.1, training=False).to("cpu").type_as(x),
    "casts": lambda m, x, p: x.double().float() + x.to(torch.bfloat16).to(x) + (x > 0) + (x * 3).to(torch.int32),
    "constants": lambda m, x, p: x * (m.c * 2).cos() + torch.arange(8).float() / 4 + torch.tensor(1.5) * m.c.mean(),
    "in place": lambda m, x, p: x.clone().mul_(2).add_(m.b),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_rule_matches_torch(name: str, capture: Capture) -> None:
    captured = capture(FUNCTIONS[name])
    for count in (1, 2, 11):
        assert captured.difference(count) <= 2e-6


DECOMPOSED = ("layer norm", "activations", "more reductions", "splits", "selection", "logic", "constants", "positions")


@pytest.mark.parametrize("name", DECOMPOSED)
def test_rule_matches_torch_after_decomposition(name: str, capture: Capture) -> None:
    assert capture(FUNCTIONS[name], decompose=True).difference(9) <= 2e-6


@pytest.mark.parametrize(
    "name", ["activations", "powers", "layer norm", "rms norm", "linear", "reductions", "constants"]
)
def test_half_precision_rounds_where_torch_does(name: str, capture: Capture) -> None:
    captured = capture(FUNCTIONS[name], dtype=torch.bfloat16)
    assert captured.difference(9) <= 2**-7


def test_positions_and_ids_stay_32_bit(capture: Capture) -> None:
    captured = capture(FUNCTIONS["position table"])
    assert captured.graph.inputs[0].type.dtype is DType.I32
    assert not [n for n in captured.graph.nodes if n.types and n.types[0].dtype is DType.I64 and n.op != "core.scalar"]


def test_constants_are_folded(capture: Capture) -> None:
    captured = capture(FUNCTIONS["constants"])
    assert "tensor.arange" not in captured.ops()
    assert captured.ops().count("tensor.cos") == 0
    assert all(name.startswith("const.") for name in captured.constants)


def test_an_unused_branch_is_not_imported(capture: Capture) -> None:
    def function(m: Any, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        torch.arange(x.shape[1]).cumsum(0)
        return x * 2

    assert capture(function).ops().count("tensor.mul") == 1


def test_provenance_names_module_and_operator(capture: Capture) -> None:
    captured = capture(lambda m, x, p: nnf.silu(x))
    locs = {node.op: node.loc for node in captured.graph.nodes}
    assert (locs["tensor.embedding"].module, locs["tensor.embedding"].source) == ("table", "aten.embedding")
    assert locs["tensor.silu"].source == "aten.silu"


REFUSED: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "positions from arange": (lambda m, x, p: x * torch.arange(x.shape[1])[None, :, None], "arange over the tokens"),
    "token count as a number": (lambda m, x, p: x * x.shape[1], "is not a tensor"),
    "softplus with beta": (lambda m, x, p: nnf.softplus(x, beta=2.0), "beta=2.0"),
    "integer bits": (lambda m, x, p: x * (p & 3)[..., None], "bool only"),
    "several indices": (lambda m, x, p: x + m.w[p, p][..., None], "several tensors"),
    "norm over two axes": (lambda m, x, p: nnf.layer_norm(x.view(1, -1, 2, 4), (2, 4)).flatten(2), "last axis"),
    "random numbers": (lambda m, x, p: x + torch.rand(8), "rand"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals_name_operator_and_line(name: str, capture: Capture) -> None:
    function, message = REFUSED[name]
    with pytest.raises(UntraceableError) as error:
        capture(function)
    assert message in str(error.value)
    assert "op_import.py:" in str(error.value)
    assert "self.function(self" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_operator_without_rule_is_named(capture: Capture) -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"aten\.topk.*op_import\.py.*no import rule"):
        capture(lambda m, x, p: x.topk(3, -1).values)


def test_rules_are_known_operators() -> None:
    for name in RULES:
        namespace, _, rest = name.partition(".")
        if namespace in ("aten", "inferir"):
            packet, overload = rest.rsplit(".", 1)
            assert overload in getattr(getattr(torch.ops, namespace), packet).overloads(), name
    assert aten.RULES is RULES
