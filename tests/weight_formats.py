"""What every weight format must keep to, whoever brings it: `check_format(format)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.weights import packing
from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, from_torch, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_format import WeightFormat

ROWS = (1, 63, 64, 130)  # outputs: less than a block, whole blocks, and more
WIDTHS = (1, 3, 30, 32, 96)


def check_format(format: WeightFormat, folder: Path) -> None:
    """Pack random and extreme weights of many shapes and both types, and compare what comes back with the bounds."""
    held = set()
    for dtype in (torch.float32, torch.bfloat16):
        for n in ROWS:
            for k in WIDTHS:
                for parts in (1, 2):
                    weight = _random(n, k, dtype)
                    options = _options(format, weight, parts)
                    if options is not None:
                        held.add((dtype, n, k, parts))
                        _check(format, weight, options)
        for name, weight in extremes(dtype):
            options = _options(format, weight, 1)
            assert options is not None, f"{format.name} does not hold {name}"
            _check(format, weight, options)
        _check_files(format, _random(130, 64, dtype), folder)
    for dtype in (torch.float32, torch.bfloat16):
        blocks = {n for d, n, _, _ in held if d is dtype}
        assert blocks == set(ROWS), f"{format.name} holds {blocks} outputs only"
        assert {k for d, _, k, _ in held if d is dtype} >= {32, 96}
    assert any(parts == 2 for *_, parts in held) == ("interleave" in format.options)


def extremes(dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights that a format must hold within its bound, by what is special about them."""
    base, info = _random(70, 64, dtype), torch.finfo(dtype)
    for name, value in {
        "NaN": float("nan"),
        "infinity": float("-inf"),
        "the largest number": info.max,
        "the smallest normal number": info.tiny,
        "a subnormal number": info.smallest_normal / 8,
    }.items():
        weight = base.clone()
        weight[3, 5], weight[69, 63] = value, -value
        yield name, weight
        yield f"rows of {name}", torch.where(torch.arange(70)[:, None] % 3 == 0, value, base.float()).to(dtype)
    yield "nothing but zero", torch.zeros_like(base)
    yield "negative zeros", -torch.zeros_like(base)
    yield "one number", torch.full_like(base, 0.3)
    yield "columns of very different size", (base.float() * torch.exp2(torch.arange(64) / 2.0 - 16)).to(dtype)
    yield "rows of very different size", (base.float() * torch.exp2(torch.arange(70)[:, None] - 35.0)).to(dtype)


def _random(n: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(n, k, generator=torch.Generator().manual_seed(1000 * n + k)) * 0.1).to(dtype)


def _options(format: WeightFormat, weight: torch.Tensor, parts: int) -> dict[str, Any] | None:
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


def _check(format: WeightFormat, weight: torch.Tensor, options: Mapping[str, Any]) -> None:
    n, k = weight.shape
    b = Builder()
    type_ = TensorType((n, k), from_torch(weight.dtype))
    values = format.transform(b, b.weight("w", type_), **options)
    stored = list(interpret(Graph((), values, format.roles), {}, {"w": weight}).values())
    for tensor, declared in zip(stored, values, strict=True):
        assert tuple(tensor.shape) == declared.type.shape
        assert tensor.dtype is torch_dtype(declared.type.dtype)
    for tensor, direct in zip(stored, format.pack(weight, Attrs(options)), strict=True):
        assert torch.equal(_bits(tensor), _bits(direct))
    parts = options.get("interleave", 1)
    back, error = format.unpack(stored, n, parts), format.error(stored, n, parts).expand(n, k)
    assert back.shape == (n, k)
    exact = error == 0
    assert torch.equal(_bits(torch.where(exact, back, 0)), _bits(torch.where(exact, weight.to(back.dtype), 0)))
    off = (back.double() - weight.double()).abs()
    assert bool((exact | (off <= error) | (error == float("inf"))).all())
    _check_product(format, weight, stored, options)


def _check_product(
    format: WeightFormat, weight: torch.Tensor, stored: list[torch.Tensor], options: Mapping[str, Any]
) -> None:
    """The reference product is that of the weight that the stored tensors stand for."""
    parts = options.get("interleave", 1)
    n, k = weight.shape
    dtype = from_torch(weight.dtype)
    b = Builder()
    x = b.input("x", TensorType((T, k), dtype))
    types = [TensorType(tuple(t.shape), from_torch(t.dtype)) for t in stored]
    held = [b.weight(role, type_) for role, type_ in zip(format.roles, types, strict=True)]
    y = b.op("tensor.linear_packed", x, *held, n=n, format=format.name, interleave=parts, dtype=DType.F32)
    rows = torch.eye(k)[: min(k, 3)].to(weight.dtype)
    out = interpret(Graph((x,), (y,), ("y",)), {"x": rows}, dict(zip(format.roles, stored, strict=True)))["y"]
    want = torch.nn.functional.linear(rows.float(), format.unpack(stored, n, parts).float())
    assert torch.equal(out.nan_to_num(nan=7.0), want.nan_to_num(nan=7.0))


def _check_files(format: WeightFormat, weight: torch.Tensor, folder: Path) -> None:
    """Weight files hold what the transforms give."""
    b = Builder()
    values = format.transform(b, b.weight("w", TensorType(tuple(weight.shape), from_torch(weight.dtype))))
    transforms = {role: Graph((), (value,), ("value",), role) for role, value in zip(format.roles, values, strict=True)}
    types = {role: value.type for role, value in zip(format.roles, values, strict=True)}
    path = folder / f"{format.name}-{weight.dtype}.safetensors"
    store = packing.WeightCache(CompileCache(None), "checkpoint", from_torch(weight.dtype))
    packing.write_weights(path, types, transforms, {"w": weight}.__getitem__, store)
    loaded = load_file(path)
    for role, tensor in zip(format.roles, format.pack(weight, Attrs(format.defaults)), strict=True):
        assert torch.equal(_bits(loaded[role]), _bits(tensor))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
