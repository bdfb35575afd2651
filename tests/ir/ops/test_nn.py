"""`nn.*`: the decomposition, the reference and a direct torch formula agree, in float32 and bfloat16."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify

torch.set_num_threads(1)
DTYPES = [DType.F32, DType.BF16]


def rand(*shape: int, dtype: DType = DType.F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch_dtype(dtype))


def run(op: str, *tensors: torch.Tensor, **attrs: Any) -> torch.Tensor:
    """Interpret the op and its decomposition; both must agree bit for bit. The first axis of rank 2 and 3 is T."""
    b, inputs = Builder(), []
    for i, t in enumerate(tensors):
        shape = (T, *t.shape[1:]) if t.dim() > 1 else tuple(t.shape)
        inputs.append(b.input(f"x{i}", TensorType(shape, next(d for d in DType if torch_dtype(d) == t.dtype))))
    value = b.op(op, *inputs, **attrs)
    decompose = opdef(op).decompose
    assert decompose is not None
    graph = Graph(tuple(inputs), (value, decompose(b, inputs, value.node.attrs)), ("op", "parts"))
    verify(graph)
    assert graph.outputs[0].type == graph.outputs[1].type
    out = interpret(graph, dict(zip(graph.input_names, tensors, strict=True)))
    assert torch.equal(out["op"], out["parts"])
    result = out["op"]
    assert isinstance(result, torch.Tensor)
    return result


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    f = x.float()
    return f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_in_its_three_forms(dtype: DType) -> None:
    x, w = rand(5, 24, dtype=dtype), rand(24, dtype=dtype, seed=1)
    llama = w * normalised(x, 1e-5).to(x.dtype)
    assert torch.equal(run("nn.rms_norm", x, w, eps=1e-5), llama)
    gemma = (normalised(x, 1e-6) * (1.0 + w.float())).to(x.dtype)
    assert torch.equal(run("nn.rms_norm", x, w, eps=1e-6, offset=1.0, round_before_weight=False), gemma)
    assert torch.equal(run("nn.rms_norm", x, eps=1e-5), normalised(x, 1e-5).to(x.dtype))
    torch.testing.assert_close(run("nn.rms_norm", x, w, eps=1e-5), F.rms_norm(x, (24,), w, 1e-5))


def test_where_the_norm_rounds_matters() -> None:
    x, w = rand(5, 256, dtype=DType.BF16), rand(256, dtype=DType.BF16, seed=1)
    before = run("nn.rms_norm", x, w, eps=1e-5, round_before_weight=True)
    after = run("nn.rms_norm", x, w, eps=1e-5, round_before_weight=False)
    assert not torch.equal(before, after)


def test_rms_norm_of_heads() -> None:
    x, w = rand(5, 3, 8), rand(8, seed=1)
    torch.testing.assert_close(run("nn.rms_norm", x, w, eps=1e-6), F.rms_norm(x, (8,), w, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: DType) -> None:
    x, w, bias = rand(5, 24, dtype=dtype), rand(24, dtype=dtype, seed=1), rand(24, dtype=dtype, seed=2)
    torch.testing.assert_close(run("nn.layer_norm", x, w, bias, eps=1e-5), F.layer_norm(x, (24,), w, bias, 1e-5))
    torch.testing.assert_close(run("nn.layer_norm", x, eps=1e-5), F.layer_norm(x, (24,), eps=1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [8, 4])
def test_rotary(dtype: DType, rotated: int) -> None:
    x = rand(5, 2, 8, dtype=dtype)
    angle = torch.outer(torch.arange(5.0), 100.0 ** -torch.arange(0, 1, 2 / rotated)).repeat(1, 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    head = x[..., :rotated]
    half = torch.cat((-head[..., rotated // 2 :], head[..., : rotated // 2]), -1)
    expect = torch.cat((head * cos[:, None] + half * sin[:, None], x[..., rotated:]), -1)
    assert torch.equal(run("nn.rotary", x, cos, sin), expect)


def test_rotary_is_a_rotation_by_position() -> None:
    """Scores of rotated queries and keys depend on the distance of their positions alone (Su et al. 2021)."""
    q, k = rand(1, 1, 8).expand(5, 1, 8), rand(1, 1, 8, seed=1).expand(5, 1, 8)
    angle = torch.outer(torch.arange(5.0), 100.0 ** -torch.arange(0, 1, 0.25)).repeat(1, 2)
    q, k = (run("nn.rotary", t.contiguous(), angle.cos(), angle.sin())[:, 0] for t in (q, k))
    scores = q @ k.T
    for distance in range(-4, 5):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


GATES = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", sorted(GATES))
def test_gated_activation(kind: str, dtype: DType) -> None:
    gate, up = rand(5, 24, dtype=dtype), rand(5, 24, dtype=dtype, seed=1)
    assert torch.equal(run("nn.gated_act", gate, up, kind=kind), GATES[kind](gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap(dtype: DType) -> None:
    x = rand(5, 24, dtype=dtype) * 50
    out = run("nn.softcap", x, cap=30.0)
    assert torch.equal(out, torch.tanh(x / 30.0) * 30.0)
    assert out.abs().max() <= 30.0


@pytest.mark.parametrize(
    ("op", "tensors", "attrs", "message"),
    [
        ("nn.rms_norm", (rand(5, 24), rand(23)), {"eps": 1e-5}, "weight"),
        ("nn.rotary", (rand(5, 2, 8), rand(5, 6), rand(5, 8)), {}, "differ"),
        ("nn.rotary", (rand(5, 2, 8), rand(5, 10), rand(5, 10)), {}, "rotation of"),
        ("nn.rotary", (rand(5, 2, 8), rand(5, 8), rand(5, 8)), {"style": "spiral"}, "style 'spiral'"),
        ("nn.gated_act", (rand(5, 4), rand(5, 4)), {"kind": "swish"}, "kind 'swish'"),
        ("nn.gated_act", (rand(5, 4), rand(5, 3)), {"kind": "silu"}, "cannot broadcast"),
        ("nn.softcap", (rand(5, 4),), {"cap": 0.0}, "not positive"),
    ],
)
def test_misuse_is_refused(op: str, tensors: tuple[torch.Tensor, ...], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(IRError, match=message):
        run(op, *tensors, **attrs)
