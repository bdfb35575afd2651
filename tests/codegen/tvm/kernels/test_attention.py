"""Paged attention against a float64 reference, with caches full of NaN wherever nothing was written."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from window_rule import reads

from inferir.codegen.tvm.kernels.attention import attention_kernels
from inferir.codegen.tvm.kernels.attention_merge import workspace_bytes
from inferir.codegen.tvm.kernels.attention_parts import SEGMENT, AttentionShape
from inferir.ir.contract.split_kv import SPLIT, split_count
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType

_MAX_BLOCKS = 130


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    block_size: int = 32
    window: int = 0  # see window_rule
    softcap: float = 0.0
    dtype: str = "bf16"
    scale: float | None = None  # default: 1 / sqrt(head_dim)

    def kernels(self, target: Target, tile_tokens: int = 16) -> Any:
        return attention_kernels(
            "attention",
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_dim=self.v_dim,
            block_size=self.block_size,
            reads=reads(self.window),
            softcap=self.softcap,
            scale=self.head_dim**-0.5 if self.scale is None else self.scale,
            dtype=self.dtype,
            q_row_stride=self.heads * self.head_dim,
            out_row_stride=self.heads * self.v_dim,
            tile_tokens=tile_tokens,
            max_blocks_per_seq=_MAX_BLOCKS,
            features=frozenset(target.features),
        )


class Batch:
    """Sequences of `(length, new tokens)`: random q, k, v, and paged caches that hold NaN outside the sequences."""

    def __init__(self, case: Case, work: Sequence[tuple[int, int]], seed: int = 0) -> None:
        self.case, self.work = case, work
        generator = torch.Generator().manual_seed(seed)
        dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float32
        kp = 2 if case.dtype == "bf16" else 1
        size = case.block_size
        blocks = [-(-length // size) for length, _ in work]
        order = (torch.randperm(sum(blocks), generator=generator) + 1).tolist()
        nan = float("nan")
        self.k_cache = torch.full((sum(blocks) + 1, case.kv_heads, case.head_dim // kp, size, kp), nan, dtype=dtype)
        self.v_cache = torch.full((sum(blocks) + 1, case.kv_heads, size // kp, case.v_dim, kp), nan, dtype=dtype)
        self.tables = torch.zeros(len(work), _MAX_BLOCKS, dtype=torch.int32)
        self.q = torch.randn(sum(n for _, n in work), case.heads, case.head_dim, generator=generator).to(dtype)
        self.k = [torch.randn(n, case.kv_heads, case.head_dim, generator=generator).to(dtype) for n, _ in work]
        self.v = [torch.randn(n, case.kv_heads, case.v_dim, generator=generator).to(dtype) for n, _ in work]
        for s, (length, _) in enumerate(work):
            for position in range(length):
                if position % size == 0:
                    self.tables[s, position // size] = order.pop()
                block, at = int(self.tables[s, position // size]), position % size
                self.k_cache[block, :, :, at] = self.k[s][position].view(case.kv_heads, -1, kp)
                self.v_cache[block, :, at // kp, :, at % kp] = self.v[s][position]

    def items(self, tile: int, split: bool = False) -> tuple[np.ndarray, int, int]:
        """Work items of at most `tile` tokens, with `split` one for each of their splits where they have several; how
        many are to be merged; rows of the workspace.
        """
        rows, first, partial = [], 0, 0
        for s, (length, new) in enumerate(self.work):
            for i in range(0, new, tile):
                count, position = min(tile, new - i), length - new + i
                splits = split_count(position + count)
                item = (s, first + i, count, position)
                if split and splits > 1:
                    rows += [(*item, j, partial + j * count) for j in range(splits)]
                    partial += splits * count
                else:
                    rows.append((*item, -1, 0))
            first += new
        rows.sort(key=lambda r: r[4] != 0)
        return np.array(rows, np.int32), sum(r[4] == 0 for r in rows), partial

    def reference(self, absolute: bool = False) -> torch.Tensor:
        """The result in float64; `absolute`: of |v|, which bounds what rounding the weights can change."""
        case, out, first = self.case, [], 0
        for s, (length, new) in enumerate(self.work):
            q = self.q[first : first + new].double()
            k, v = (t[s].double().repeat_interleave(case.heads // case.kv_heads, 1) for t in (self.k, self.v))
            scores = torch.einsum("thd,khd->htk", q, k) * case.head_dim**-0.5
            if case.softcap:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            mine, other = torch.arange(length - new, length)[:, None], torch.arange(length)
            seen = other <= mine
            if case.window > 0:
                seen &= other > mine - case.window
            elif case.window:
                seen &= other // -case.window == mine // -case.window
            weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
            out.append(torch.einsum("htk,khd->thd", weights, v.abs() if absolute else v))
            first += new
        return torch.cat(out)


def _numpy(t: torch.Tensor) -> np.ndarray:
    return t.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else t.numpy()


@pytest.fixture
def attend(runner: Callable[..., Any], aligned: Callable[..., np.ndarray]) -> Callable[..., torch.Tensor]:
    """Runs a case's kernel on a batch; the work items have at most `tile` tokens."""

    def run(
        target: Target, batch: Batch, tile: int = 16, workers: int = 0, built_for: int = 16, split: bool = False
    ) -> torch.Tensor:
        case = batch.case
        module = runner(case.kernels(target, built_for), target, workers)
        items, merges, partials = batch.items(tile, split)
        shape = AttentionShape(case.heads, case.kv_heads, case.head_dim, case.v_dim, case.block_size, case.dtype)
        workspace = aligned(np.full(max(1, workspace_bytes(shape, partials) // 4), np.nan, np.float32))
        shape = (len(batch.q), case.heads, case.v_dim)
        out = aligned(np.zeros(shape, "uint16" if case.dtype == "bf16" else "float32"))
        tensors = (batch.q, batch.k_cache, batch.v_cache, batch.tables)
        arrays = [*(aligned(_numpy(t)) for t in tensors), aligned(items), out, workspace]
        table = module.table([(0, arrays), (1, arrays)])
        module.step(table, n_t=len(batch.q), n_s=len(batch.work), n_a=len(items), n_m=merges)
        result = torch.from_numpy(out)
        return result.view(torch.int16).view(torch.bfloat16) if case.dtype == "bf16" else result

    return run


def _check(batch: Batch, got: torch.Tensor) -> None:
    want = batch.reference()
    error = (got.double() - want).abs()
    if batch.case.dtype == "f32":
        assert error.max() < 1e-5
    else:
        # bf16 rounds by at most 2^-8: the weights, their sum, and the result. On average much less.
        relative = error / batch.reference(absolute=True)
        assert relative.max() <= 3 * 2**-8
        assert relative.mean() <= 2**-9


_MIXED = [(300, 1), (40, 40), (7, 7), (261, 20), (1, 1), (32, 3), (33, 1), (256, 2)]
_CASES = [
    Case(6, 2, 64, 64),
    Case(4, 4, 16, 16, block_size=16, window=20),
    Case(4, 2, 16, 16, block_size=16, window=-20),
    Case(4, 1, 16, 16, window=-64),
    Case(14, 2, 32, 20, block_size=64, softcap=30.0),
    Case(4, 1, 256, 8, window=100),
    Case(13, 1, 6, 33),
]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("case", _CASES, ids=lambda c: f"h{c.heads}-{c.kv_heads}-d{c.head_dim}-{c.v_dim}")
def test_mixed_batch(host: Target, attend: Callable[..., torch.Tensor], case: Case, dtype: str) -> None:
    batch = Batch(Case(**{**case.__dict__, "dtype": dtype}), _MIXED)
    _check(batch, attend(host, batch))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_target(target: Target, attend: Callable[..., torch.Tensor], dtype: str) -> None:
    batch = Batch(Case(6, 2, 32, 24, window=50, dtype=dtype), [(90, 1), (17, 17), (300, 5)])
    _check(batch, attend(target, batch))


@pytest.mark.parametrize("window", [0, 37, -37])
def test_rows_are_bit_identical_for_every_split(
    target: Target, attend: Callable[..., torch.Tensor], window: int
) -> None:
    """The same tokens as one prefill, in chunks of any size, one by one, and beside other sequences."""
    case = Case(6, 2, 16, 16, window=window)
    whole = Batch(case, [(290, 290)])
    expected = attend(target, whole)
    for tile in (1, 3, 5):
        assert torch.equal(attend(target, whole, tile), expected)
    mixed = Batch(case, [(290, 30), (3, 3)])
    mixed.k[0], mixed.v[0] = whole.k[0], whole.v[0]
    for s, (length, _) in enumerate(mixed.work):
        for position in range(length):
            block, at = int(mixed.tables[s, position // 32]), position % 32
            mixed.k_cache[block, :, :, at] = mixed.k[s][position].view(2, -1, 2)
            mixed.v_cache[block, :, at // 2, :, at % 2] = mixed.v[s][position]
    mixed.q[:30] = whole.q[-30:]
    assert torch.equal(attend(target, mixed, 7)[:30], expected[-30:])
    assert torch.equal(attend(target, mixed, 1, built_for=1)[:30], expected[-30:])


def test_threads_do_not_change_the_result(host: Target, attend: Callable[..., torch.Tensor]) -> None:
    batch = Batch(Case(6, 2, 64, 64), _MIXED)
    alone = attend(host, batch)
    for _ in range(5):
        assert torch.equal(attend(host, batch, workers=2), alone)


def test_large_scores_and_infinities_stay_finite(host: Target, attend: Callable[..., torch.Tensor]) -> None:
    batch = Batch(Case(4, 2, 16, 16, dtype="f32"), [(70, 70)])
    batch.q *= 300
    want = batch.reference()
    assert (attend(host, batch).double() - want).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 7}, "7 query heads"),
        ({"block_size": 24}, "block size 24"),
        ({"block_size": 512}, "block size 512"),
        ({"head_dim": 15}, "head dim 15"),
    ],
)
def test_sizes_it_cannot_take_name_the_kernel(host: Target, change: dict[str, int], message: str) -> None:
    case = Case(**{**Case(4, 2, 16, 16).__dict__, **change})
    with pytest.raises(CodegenError, match=f"attention: {message}"):
        case.kernels(host)


def test_a_scale_that_is_not_positive_is_refused(host: Target) -> None:
    with pytest.raises(CodegenError, match=r"attention: the scale -0.5 is not positive"):
        Case(4, 2, 16, 16, scale=-0.5).kernels(host)


def test_splits_are_made_of_whole_segments() -> None:
    assert SPLIT % SEGMENT == 0


def test_decode_bucket_has_one_row_tile_height(host: Target) -> None:
    kernel, _ = Case(6, 2, 64, 64).kernels(host, tile_tokens=1)
    names = [f.name for f in kernel.shared]
    assert sum("scores" in n for n in names) == 1
    assert sum("_sum_" in n for n in names) == 1


_LONG = [
    Case(6, 2, 16, 16),
    Case(40, 1, 16, 33),
    Case(3, 1, 32, 20, window=700, softcap=20.0),
    Case(3, 1, 32, 20, window=-700, softcap=20.0),
    Case(4, 2, 16, 8, window=-50),
    Case(4, 4, 16, 8, block_size=16, window=40),
]
_DTYPES = {torch.float32: DType.F32, torch.int32: DType.I32}
_EDGES = [(n * SPLIT + d, 1) for n in (1, 2, 3) for d in (-1, 0, 1)]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("case", _LONG, ids=lambda c: f"h{c.heads}-{c.kv_heads}-w{c.window}")
def test_split_items_give_the_same_bits(
    host: Target, attend: Callable[..., torch.Tensor], case: Case, dtype: str
) -> None:
    """One token at contexts around the ends of splits, and chunks across such ends, with and without split items."""
    batch = Batch(Case(**{**case.__dict__, "dtype": dtype}), [*_EDGES, (2 * SPLIT + 9, 16), (5, 5)])
    whole = attend(host, batch)
    _check(batch, whole)
    for workers in (0, 2):
        assert torch.equal(attend(host, batch, workers=workers, split=True), whole)
    assert torch.equal(attend(host, batch, 5, split=True), whole)
    assert torch.equal(attend(host, batch, 1, split=True, built_for=1), whole)


@pytest.mark.parametrize("case", _LONG, ids=lambda c: f"h{c.heads}-{c.kv_heads}-w{c.window}")
def test_split_items_mean_what_the_reference_interpreter_says(
    host: Target, attend: Callable[..., torch.Tensor], case: Case
) -> None:
    case = Case(**{**case.__dict__, "dtype": "f32"})
    batch = Batch(case, [(2 * SPLIT + 9, 3), (5, 5), (SPLIT + 1, 1)])
    items, merges, _ = batch.items(2, split=True)
    assert merges == 3
    b = Builder()
    tensors = (batch.q, batch.k_cache, batch.v_cache, batch.tables, torch.from_numpy(items))
    inputs = [b.input(f"x{i}", TensorType(tuple(t.shape), _DTYPES[t.dtype])) for i, t in enumerate(tensors)]
    attrs = {"kv_heads": case.kv_heads, "block_size": case.block_size, "layer": 0}
    out = b.op(
        "attn.paged", *inputs, scale=case.head_dim**-0.5, reads=reads(case.window), softcap=case.softcap, **attrs
    )
    want = interpret(Graph(tuple(inputs), (out,)), {f"x{i}": t for i, t in enumerate(tensors)})["out0"]
    torch.testing.assert_close(attend(host, batch, 2, split=True), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [0, 300, -300])
def test_rows_across_splits_are_bit_identical_on_every_target(
    target: Target, attend: Callable[..., torch.Tensor], window: int
) -> None:
    """A long prefill in tiles that lie across the ends of splits, and the same tokens one by one, split or not."""
    batch = Batch(Case(2, 1, 16, 16, window=window), [(2 * SPLIT + 40, 2 * SPLIT + 40)])
    whole = attend(target, batch, 13)
    _check(batch, whole)
    assert torch.equal(attend(target, batch, 1, built_for=1), whole)
    assert torch.equal(attend(target, batch, 1, built_for=1, split=True), whole)
    assert torch.equal(attend(target, batch, 16, split=True), whole)
