"""What products ask for ahead of the next attention, read off the lists in scratch memory; results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from store_epilogue import store_epilogue

from inferir.codegen.tunables import Product
from inferir.codegen.tvm.kernels.kv_prefetch import CAPACITY, MOST_BLOCKS, PIECE, PIECE_STEPS, KvPrefetch
from inferir.codegen.tvm.kernels.matmul import MatmulTile, matmul_kernel
from inferir.codegen.tvm.prefetch_plan import SHARING, key_value_shares
from inferir.ir.contract.split_kv import ITEM_WIDTH
from inferir.ir.contract.target import Target
from inferir.ir.weight_blocks import BLOCK

K, N, ROWS = 64, 5 * 64, 40
TILE = MatmulTile(rows=6, panel=18, blocks=2)
LENGTHS = [1, 16, 17, 40, 64, 700, 2, 33] * 5  # tokens of sequences, the current one included
KEYS, VALUES, BLOCK_TOKENS, MOST = 3 * PIECE, PIECE + 64, 16, 64


@pytest.fixture
def asked(host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """Runs a product task by task; (result, pieces of keys and values that each task found) for a share."""
    rng = np.random.default_rng(0)
    x, w = (aligned(rng.integers(0, 1 << 14, n).astype(np.int32) << 16) for n in (ROWS * K // 2, N * K // 2))
    tables = aligned(rng.permutation(ROWS * MOST).astype(np.int32))
    items = np.zeros((ROWS, ITEM_WIDTH), np.int32)
    items[:, 0], items[:, 3] = range(ROWS), [n - 1 for n in LENGTHS]
    items = aligned(items)
    span = -(-ROWS * MOST * max(KEYS, VALUES) // 64) * 64  # places of two caches, which are never touched
    room = np.empty(2 * span + 64, np.uint8)
    first = -room.ctypes.data % 64
    caches = [room[first + i * span :][:256].view(np.int32) for i in range(2)]

    def run(kv: KvPrefetch | None, n_a: int) -> tuple[np.ndarray, list[list[int]], set[int]]:
        epilogue, extra = store_epilogue("f32", N)
        features = frozenset(host.features)
        kernel = matmul_kernel(
            "m", Product(K, N, "bf16", 1, 1, 1), tile=TILE, features=features, epilogue=epilogue, extra=extra, kv=kv
        )
        step = runner([kernel], host, 1)
        out = aligned(np.zeros((ROWS, N), np.float32))
        table = step.table([(0, [x, w, out, *((*caches, tables, items) if kv else ())])])
        tasks = step.shared_tasks(table, n_t=ROWS, n_a=n_a)
        found = []
        at = TILE.rows * BLOCK * 4 + 8 * -(-K // 2 // PIECE_STEPS)
        pieces = step._scratch[at : at + 8 * CAPACITY].view(np.int64) if kv else np.zeros(0, np.int64)
        for task in range(tasks):
            pieces[:] = 0
            step.run_task(table, task)
            found.append(pieces[pieces != 0].tolist())
        wanted = set()
        if kv:
            for blocks, length in zip(tables.reshape(ROWS, MOST), LENGTHS, strict=True):
                last = min(-(-length // BLOCK_TOKENS), MOST_BLOCKS)
                for block in blocks[kv.first : last : kv.stride].tolist():
                    for cache, size in zip(caches, (KEYS, VALUES), strict=True):
                        start = cache.ctypes.data + block * size
                        wanted |= set(range(start, start + size, PIECE))
        return out, found, wanted

    return run


@pytest.mark.parametrize(("first", "stride"), [(0, 1), (0, 2), (3, 4)])
def test_tasks_ask_for_all_that_the_next_attention_reads(asked: Callable[..., Any], first: int, stride: int) -> None:
    """Each piece by one task, sequences in the order of tasks, and the product as without it."""
    plain, none, _ = asked(None, ROWS)
    assert not any(none)
    out, found, wanted = asked(KvPrefetch(KEYS, VALUES, BLOCK_TOKENS, MOST, first, stride), ROWS)
    assert sorted(p for pieces in found for p in pieces) == sorted(wanted)
    assert all(len(pieces) < CAPACITY for pieces in found)
    np.testing.assert_array_equal(out, plain)


def test_a_task_asks_for_no_more_than_its_list_holds(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferir.codegen.tvm.kernels.kv_prefetch.CAPACITY", 12)
    out, found, wanted = asked(KvPrefetch(KEYS, VALUES, BLOCK_TOKENS, MOST), ROWS)
    assert max(len(pieces) for pieces in found) == 10  # blocks have five pieces
    assert {p for pieces in found for p in pieces} < wanted
    np.testing.assert_array_equal(out, asked(None, ROWS)[0])


@pytest.mark.parametrize("n_a", [ROWS - 1, 1])
def test_steps_with_prompts_ask_for_nothing(asked: Callable[..., Any], n_a: int) -> None:
    _, found, _ = asked(KvPrefetch(KEYS, VALUES, BLOCK_TOKENS, MOST), n_a)
    assert found
    assert not any(found)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_products_share_the_blocks(count: int) -> None:
    """Every block is asked for by one product, and the largest asks for most."""
    sizes = {f"p{i}": (i + 1) * 64 for i in range(count)}
    shares = key_value_shares(sizes, KvPrefetch(KEYS, VALUES, BLOCK_TOKENS, MOST))
    assert len(shares) == min(count, SHARING)
    blocks = {name: set(range(MOST)[kv.first :: kv.stride]) for name, kv in shares.items()}
    assert sorted(b for mine in blocks.values() for b in mine) == list(range(MOST))
    assert max(blocks, key=lambda name: len(blocks[name])) in (f"p{count - 1}", f"p{count - 2}")
    assert key_value_shares(sizes, None) == {}
