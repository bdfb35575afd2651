"""Weights that formats are checked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, from_torch, torch_dtype
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_format import WeightFormat

if TYPE_CHECKING:
    import torch


def random_matrix(n: int, k: int, dtype: DType) -> torch.Tensor:
    """Normal numbers of size 0.1, the same for the same shape."""
    import torch

    generator = torch.Generator().manual_seed(1000 * n + k)
    return (torch.randn(n, k, generator=generator) * 0.1).to(torch_dtype(dtype))


def extremes(dtype: DType, k: int = 64) -> Sequence[tuple[str, torch.Tensor]]:
    """Weights [70, k] that a format must hold within its bound, by what is special about them."""
    import torch

    kind = torch_dtype(dtype)
    base, info = random_matrix(70, k, dtype), torch.finfo(kind)
    found = []
    for name, value in {
        "NaN": float("nan"),
        "infinity": float("-inf"),
        "the largest number": info.max,
        "the smallest normal number": info.tiny,
        "a subnormal number": info.smallest_normal / 8,
    }.items():
        weight = base.clone()
        weight[3, 5], weight[69, k - 1] = value, -value
        found.append((name, weight))
        rows = torch.where(torch.arange(70)[:, None] % 3 == 0, value, base.float()).to(kind)
        found.append((f"rows of {name}", rows))
    rows, columns = torch.arange(70)[:, None], torch.arange(k)
    return [
        *found,
        ("nothing but zero", torch.zeros_like(base)),
        ("rows of zero", torch.where(rows % 2 == 0, 0.0, base.float()).to(kind)),
        ("negative zeros", -torch.zeros_like(base)),
        ("one number", torch.full_like(base, 0.3)),
        ("columns of very different size", (base.float() * torch.exp2(columns % 64 / 2.0 - 16)).to(kind)),
        ("rows of very different size", (base.float() * torch.exp2(rows - 35.0)).to(kind)),
    ]


def options_for(format: WeightFormat, weight: torch.Tensor, parts: int) -> dict[str, Any] | None:
    """Options to pack such a weight with, or None if the format says that it cannot hold it."""
    options = dict(format.defaults)
    if parts > 1:
        if "interleave" not in options:
            return None
        options["interleave"] = parts
    try:
        format.types(TensorType(tuple(weight.shape), from_torch(weight.dtype)), Attrs(options))
    except IRError:
        return None
    return options


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    import torch

    return tensor.contiguous().view(torch.uint8)
