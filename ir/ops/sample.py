"""sample: drawing tokens inside the compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.ir.dtypes import DType
from inferir.ir.graph import Attrs
from inferir.ir.ops.common import need
from inferir.ir.registry import OpDef, define
from inferir.ir.types import TensorType

if TYPE_CHECKING:
    import torch

MASK32 = 0xFFFFFFFF


def _draw_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    logits, temperature, seed, counter = types
    need(logits.rank == 2 and logits.dtype is DType.F32, f"logits are {logits}, expected f32 rows")
    for t, dtype in ((temperature, DType.F32), (seed, DType.I32), (counter, DType.I32)):
        need(t.shape == logits.shape[:1] and t.dtype is dtype, f"per-row operand {t}")
    need(0 < attrs["valid"] <= int(logits.shape[1]), f"valid = {attrs['valid']} of {logits.shape[1]}")
    return TensorType(logits.shape[:1], DType.I32)


def mix32(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser (xor-shift-multiply, constants of Wellons' lowbias32) on int64 tensors holding uint32."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def uniform(seed: torch.Tensor, counter: torch.Tensor, n: int) -> torch.Tensor:
    """[R, n] float32 in (0, 1): a function of (seed, counter, index) alone, so rows do not depend on each other."""
    import torch

    s = seed.to(torch.int64) & MASK32
    c = counter.to(torch.int64) & MASK32
    key = mix32(s ^ mix32((c + 0x9E3779B9) & MASK32))
    bits = mix32(key[:, None] ^ mix32(torch.arange(n)[None].to(torch.int64) + 1))
    return ((bits >> 10).float() + 0.5) * (1.0 / 4194304.0)


def _draw_eval(
    attrs: Attrs, logits: torch.Tensor, temperature: torch.Tensor, seed: torch.Tensor, counter: torch.Tensor
) -> torch.Tensor:
    import torch

    rows = logits[:, : attrs["valid"]]
    noise = -torch.log(-torch.log(uniform(seed, counter, rows.shape[1])))
    hot = temperature > 0
    scaled = rows / torch.where(hot, temperature, torch.ones(()))[:, None] + noise
    return torch.where(hot[:, None], scaled, rows).argmax(-1).to(torch.int32)


define(
    OpDef(
        "sample.draw",
        4,
        _draw_type,
        _draw_eval,
        attrs={"valid": int},
        doc="One token per row of logits [R, V] among the first `valid` entries: the arg-max where temperature is 0, "
        "else a draw from softmax(logits / temperature) as arg-max of logits / temperature + Gumbel noise (Gumbel "
        "1954). The noise is a function of (seed, counter, index).",
    )
)
