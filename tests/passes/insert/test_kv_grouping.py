"""Which layers share a block table, and what a sequence then takes."""

from __future__ import annotations

from typing import Any

import pytest
from window_rule import reads

from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs, sequence_blocks, sequence_use
from inferir.ir.contract.kv_specs import AttentionSpec, KVCacheSpec
from inferir.ir.graph.dtypes import DType
from inferir.passes.insert.kv_grouping import MOST_GROUPS, group_layers

SIZE: dict[str, Any] = {"block_size": 32, "kv_heads": 1, "head_dim": 256, "value_dim": 256, "dtype": DType.BF16}


def spec(window: int = 0, **changes: Any) -> KVCacheSpec:
    sizes = SIZE | changes
    return AttentionSpec(**sizes, reads=reads(window))


def layers(*windows: int) -> dict[int, KVCacheSpec]:
    return {i: spec(w) for i, w in enumerate(windows)}


def kept(window: int, tokens: int) -> int:
    """Blocks of 32 positions that hold one that the token after `tokens` tokens reads."""
    return len({p // 32 for p in range(tokens) if not window or p > tokens - window})


def nbytes(groups: tuple[KVCacheGroup, ...], tokens: int) -> int:
    return sequence_blocks(groups, tokens) * plan_slabs(groups).block_bytes


def test_one_kind_is_one_group_with_the_plain_names() -> None:
    (group,) = group_layers(layers(0, 0, 0), 8192)
    assert (group.layers, group.block_tables, group.slots, group.items) == (
        (0, 1, 2),
        "block_tables",
        "slots",
        "attn_items",
    )


def test_gemma_keeps_windows_only() -> None:
    """Eighteen layers, every sixth without window: groups of three waste nothing."""
    windows = tuple(0 if i % 6 == 5 else 512 for i in range(18))
    groups = group_layers(layers(*windows), 8192)
    assert sorted(layer for g in groups for layer in g.layers) == list(range(18))
    assert [len(g.layers) for g in groups] == [3] * 6
    page = 32 * 256 * 2 * 2
    assert nbytes(groups, 8192) == page * sum(kept(w, 8192) for w in windows) == page * (3 * 256 + 15 * 16)
    assert nbytes(groups, 8180) == page * sum(kept(w, 8180) for w in windows) == page * (3 * 256 + 15 * 17)
    uses = sequence_use(groups, 8192)
    assert [(u.layers, u.groups, u.nbytes // page) for u in uses] == [(15, 5, 15 * 16), (3, 1, 3 * 256)]
    assert len({g.block_tables for g in groups}) == len({g.slots for g in groups}) == 6
    assert {g.items: g.spec.reads.reach for g in groups} == {"attn_items.0": 512, "attn_items.1": None}


def test_two_windows_and_full_attention() -> None:
    windows = (64, 64, 0, 1024) * 3
    groups = group_layers(layers(*windows), 4096)
    for group in groups:
        assert {windows[layer] for layer in group.layers} == {group.spec.reads.reach or 0}
    assert nbytes(groups, 4095) == spec().page_bytes * sum(kept(w, 4095) for w in windows)
    assert len({g.items for g in groups}) == 3


@pytest.mark.parametrize(("windows", "length"), [((512, 0, 512), 512), ((512, 0, 4096), 300), ((8, 4, 8), 5)])
def test_windows_that_save_nothing_join_what_keeps_all(windows: tuple[int, ...], length: int) -> None:
    (group,) = group_layers(layers(*windows), length)
    assert group.layers == tuple(range(len(windows)))
    assert group.spec == spec(max(windows) if 0 not in windows else 0)


def test_kinds_of_different_sizes_have_slabs_of_their_own() -> None:
    specs = layers(0, 512, 512) | {3: spec(512, head_dim=128, value_dim=128), 4: spec(0, kv_heads=2)}
    groups = group_layers(specs, 8192)
    assert {layer: g.spec for g in groups for layer in g.layers} == specs


def test_few_groups_however_uneven_the_kinds() -> None:
    """Sixty layers with windows beside one without: sixty-one groups would waste nothing, and cost time."""
    groups = group_layers(layers(0, *[512] * 60), 8192)
    assert len(groups) <= MOST_GROUPS
    assert nbytes(groups, 8192) < nbytes(group_layers(layers(*[0] * 61), 8192), 8192)


def test_nothing_to_keep() -> None:
    assert group_layers({}, 8192) == ()
