"""Cache layouts and writes."""

import pytest
import torch

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import NB, T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.kv import cache_type


@pytest.mark.parametrize(("dtype", "pack"), [(DType.F32, 1), (DType.BF16, 2)])
@pytest.mark.parametrize("role", ["k", "v"])
def test_a_written_row_lies_where_the_layout_says(role: str, dtype: DType, pack: int) -> None:
    heads, size, block = 2, 6, 4
    type_ = cache_type(role, heads, size, block, dtype)
    assert type_.shape == (
        (NB, heads, size // pack, block, pack) if role == "k" else (NB, heads, block // pack, size, pack)
    )
    b = Builder()
    cache = b.input("cache", type_)
    x, slots = b.input("x", TensorType((T, heads, size), dtype)), b.input("slots", TensorType((T,), DType.I32))
    graph = Graph((cache, x, slots), (b.op("kv.write", cache, x, slots, role=role, block_size=block),))
    before = torch.full(type_.concrete({"NB": 3}), -1.0, dtype=torch_dtype(dtype))
    rows, where = torch.arange(3.0 * heads * size).view(3, heads, size).to(torch_dtype(dtype)), [9, 2, 7]
    after = interpret(graph, {"cache": before, "x": rows, "slots": torch.tensor(where, dtype=torch.int32)})["out0"]
    assert bool((before == -1).all())
    for row, slot in zip(rows, where, strict=True):
        at, offset = divmod(slot, block)
        for h in range(heads):
            for d in range(size):
                got = (
                    after[at, h, d // pack, offset, d % pack]
                    if role == "k"
                    else after[at, h, offset // pack, d, offset % pack]
                )
                assert got == row[h, d]
    assert int((after != -1).sum()) == rows.numel()


def test_sizes_that_do_not_pack_are_refused() -> None:
    with pytest.raises(IRError, match="head size 7 is not a multiple of 2"):
        cache_type("k", 2, 7, 4, DType.BF16)
    with pytest.raises(IRError, match="block size 3 is not a multiple of 2"):
        cache_type("v", 2, 8, 3, DType.BF16)


def test_misuse_is_refused() -> None:
    b = Builder()
    cache = b.input("cache", cache_type("k", 2, 8, 4, DType.F32))
    x, slots = b.input("x", TensorType((T, 2, 8), DType.F32)), b.input("slots", TensorType((T,), DType.I32))
    with pytest.raises(IRError, match="role 'q'"):
        b.op("kv.write", cache, x, slots, role="q", block_size=4)
    with pytest.raises(IRError, match="does not hold"):
        b.op("kv.write", cache, x, slots, role="v", block_size=4)
    with pytest.raises(IRError, match="does not hold"):
        b.op("kv.write", cache, b.op("tensor.cast", x, dtype=DType.BF16), slots, role="k", block_size=4)
