"""Attention: the captured form against torch, and the paged form against the captured one through `kv.write`."""

import random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from window_rule import reads

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import MB, NB, A, S, T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.kv import cache_type

torch.set_num_threads(1)
H, HK, D, DV = 4, 2, 8, 6


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtype: DType = DType.F32, window: int = 0, softcap: float = 0.0
) -> torch.Tensor:
    b = Builder()
    ins = [b.input(n, TensorType((T, *t.shape[1:]), dtype)) for n, t in (("q", q), ("k", k), ("v", v))]
    out = b.op("attn.attention", *ins, scale=D**-0.5, reads=reads(window), softcap=softcap, layer=0)
    result = interpret(Graph(tuple(ins), (out,)), {"q": q, "k": k, "v": v})["out0"]
    assert isinstance(result, torch.Tensor)
    return result


def qkv(n: int, dtype: DType = DType.F32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, *s, generator=g).to(torch_dtype(dtype)) for s in ((H, D), (HK, D), (HK, DV)))
    return q, k, v


def test_captured_attention_equals_torch_with_grouped_heads() -> None:
    q, k, v = qkv(9)
    heads_first = [t.transpose(0, 1) for t in (q, k, v)]
    expect = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(attention(q, k, v), expect)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_window_and_softcap(window: int) -> None:
    q, k, v = qkv(9)
    expect = torch.empty(9, H, DV)
    for t in range(9):
        for h in range(H):
            first = max(0, t - window + 1)
            scores = 5 * torch.tanh(k[first : t + 1, h // 2] @ q[t, h] * D**-0.5 / 5)
            expect[t, h] = scores.softmax(0) @ v[first : t + 1, h // 2]
    torch.testing.assert_close(attention(q, k, v, window=window, softcap=5.0), expect)


def paged_graph(dtype: DType, block: int, window: int, softcap: float) -> Graph:
    """One step: write keys and values, then attend."""
    b = Builder()
    q, k = b.input("q", TensorType((T, H, D), dtype)), b.input("k", TensorType((T, HK, D), dtype))
    v, slots = b.input("v", TensorType((T, HK, DV), dtype)), b.input("slots", TensorType((T,), DType.I32))
    tables, items = b.input("tables", TensorType((S, MB), DType.I32)), b.input("items", TensorType((A, 6), DType.I32))
    kc, vc = b.input("kc", cache_type("k", HK, D, block, dtype)), b.input("vc", cache_type("v", HK, DV, block, dtype))
    kn = b.op("kv.write", kc, k, slots, role="k", block_size=block)
    vn = b.op("kv.write", vc, v, slots, role="v", block_size=block)
    attrs = {
        "scale": D**-0.5,
        "reads": reads(window),
        "softcap": softcap,
        "kv_heads": HK,
        "block_size": block,
        "layer": 0,
    }
    out = b.op("attn.paged", q, kn, vn, tables, items, **attrs)
    return Graph((q, k, v, slots, tables, items, kc, vc), (out, kn, vn), ("out", "kc", "vc"))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 21), min_size=1, max_size=4),
    st.sampled_from([DType.F32, DType.BF16]),
    st.sampled_from([(0, 0.0), (5, 0.0), (0, 8.0), (3, 8.0)]),
    st.sampled_from([2, 4, 16]),
    st.integers(0, 10**6),
)
def test_paged_attention_equals_the_captured_form(
    lengths: list[int], dtype: DType, shape: tuple[int, float], block: int, seed: int
) -> None:
    """Sequences in random blocks, each advanced by random chunks (tiles of a chunk are separate items, and some have an
    item per split).
    """
    rng = random.Random(seed)
    window, softcap = shape
    data = [qkv(n, dtype, seed + i) for i, n in enumerate(lengths)]
    width = -(-max(lengths) // block) + 1
    need = [-(-n // block) for n in lengths]
    pool = rng.sample(range(1, sum(need) + 3), sum(need))
    tables = torch.zeros(len(lengths), width, dtype=torch.int32)
    for i, n in enumerate(need):
        tables[i, :n] = torch.tensor([pool.pop() for _ in range(n)], dtype=torch.int32)
    graph = paged_graph(dtype, block, window, softcap)
    blocks = sum(need) + 3
    caches = {
        n: torch.full(graph.inputs[6 + i].type.concrete({"NB": blocks}), torch.nan).to(torch_dtype(dtype))
        for i, n in enumerate(("kc", "vc"))
    }
    done = [0] * len(lengths)
    got = [torch.empty(n, H, DV, dtype=torch_dtype(dtype)) for n in lengths]
    while done != lengths:
        chunks = [(i, rng.randint(0, n - done[i])) for i, n in enumerate(lengths)]
        chunks = [c for c in chunks if c[1]] or [(i, 1) for i, n in enumerate(lengths) if done[i] < n][:1]
        rng.shuffle(chunks)
        items, slots, rows = [], [], 0
        for i, count in chunks:
            cut = rng.randint(0, count)
            for offset, size in ((0, cut), (cut, count - cut)):
                item = (i, rows + offset, size, done[i] + offset)
                items += [(*item, 0, 0), (*item, 1, size)] if rng.random() < 0.3 else [(*item, -1, 0)]
            slots += [int(tables[i, p // block]) * block + p % block for p in range(done[i], done[i] + count)]
            rows += count
        step = {n: torch.cat([data[i][j][done[i] : done[i] + c] for i, c in chunks]) for j, n in enumerate("qkv")}
        step |= {
            "slots": torch.tensor(slots, dtype=torch.int32),
            "items": torch.tensor(items, dtype=torch.int32),
            "tables": tables,
        }
        out = interpret(graph, step | caches)
        caches = {"kc": out["kc"], "vc": out["vc"]}
        first = 0
        for i, count in chunks:
            got[i][done[i] : done[i] + count] = out["out"][first : first + count]
            done[i] += count
            first += count
    for i, (q, k, v) in enumerate(data):
        expect = attention(q, k, v, dtype, window, softcap)
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype is DType.F32 else {"rtol": 1e-2, "atol": 1e-2}
        torch.testing.assert_close(got[i], expect, **tolerance)


def test_misuse_is_refused() -> None:
    b = Builder()

    def tensor(*shape: object, dtype: DType = DType.F32) -> TensorType:
        return TensorType(shape, dtype)  # type: ignore[arg-type]

    def op(name: str, *types: TensorType, **attrs: object) -> None:
        b.op(name, *(b.input("x", t) for t in types), **attrs)

    with pytest.raises(IRError, match="head sizes 8 and 4 differ"):
        op("attn.attention", tensor(T, 4, 8), tensor(T, 2, 4), tensor(T, 2, 4), scale=1.0, layer=0)
    with pytest.raises(IRError, match="3 query heads are not a multiple of 2"):
        op("attn.attention", tensor(T, 3, 8), tensor(T, 2, 8), tensor(T, 2, 8), scale=1.0, layer=0)
    with pytest.raises(IRError, match="only causal"):
        op("attn.attention", tensor(T, 2, 8), tensor(T, 2, 8), tensor(T, 2, 8), scale=1.0, layer=0, causal=False)
    meta = (tensor(S, MB, dtype=DType.I32), tensor(A, 6, dtype=DType.I32))
    good = (tensor(NB, 2, 8, 16, 1), tensor(NB, 2, 16, 8, 1))
    attrs = {"scale": 1.0, "kv_heads": 2, "block_size": 16, "layer": 0}
    op("attn.paged", tensor(T, 4, 8), *good, *meta, **attrs)
    with pytest.raises(IRError, match="kv_heads differs"):
        op("attn.paged", tensor(T, 4, 8), *good, *meta, **{**attrs, "kv_heads": 1})
    with pytest.raises(IRError, match="block size 8"):
        op("attn.paged", tensor(T, 4, 8), *good, *meta, **{**attrs, "block_size": 8})
    with pytest.raises(IRError, match="mixed element types"):
        op("attn.paged", tensor(T, 4, 8, dtype=DType.BF16), *good, *meta, **attrs)
