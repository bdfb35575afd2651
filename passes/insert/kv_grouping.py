"""Which layers share a block table, so that caches of different kinds waste little of the blocks they share.

All groups take blocks from one pool, and a block is as large as the largest group needs. So a group has about as many
layers as every other: the layers of a frequent kind of cache become several groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs, sequence_blocks
from inferir.ir.contract.kv_specs import KVCacheSpec, KVTensor

MOST_GROUPS = 16
"""Groups at most, unless there are more kinds: every step fills a table and a list of slots for each."""

TOLERANCE = 1 / 16
"""Memory that a division with fewer groups may take more, as a share."""


def group_layers(specs: Mapping[int, KVCacheSpec], max_model_len: int) -> tuple[KVCacheGroup, ...]:
    """Groups of the layers with these specs, in the order of their first layers, with names for their step inputs.

    Of the divisions considered it is the one whose sequence of `max_model_len` tokens takes least, or one of fewer
    groups that takes hardly more. A layer whose spec saves nothing at that length joins those that keep all.
    """
    kinds: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in specs.items():
        kinds.setdefault(_kept_as(spec, specs.values(), max_model_len), []).append(layer)
    shapes: dict[tuple[KVTensor, ...], list[KVCacheSpec]] = {}
    for spec in kinds:
        shapes.setdefault(spec.tensors, []).append(spec)
    sizes = [_sizes(len(kinds[s]) for s in alike) for alike in shapes.values()]
    found = []
    for choice in itertools.product(*sizes):
        most = dict(zip(shapes, choice, strict=True))
        groups = tuple(
            KVCacheGroup(spec=spec, layers=part)
            for spec, layers in kinds.items()
            for part in _parts(layers, most[spec.tensors])
        )
        if len(groups) <= max(MOST_GROUPS, len(kinds)):
            cost = sequence_blocks(groups, max_model_len) * plan_slabs(groups).block_bytes
            found.append((cost, len(groups), groups))
    limit = min(cost for cost, *_ in found) * (1 + TOLERANCE)
    _, _, best = min((f for f in found if f[0] <= limit), key=lambda f: f[1::-1])
    return _named(sorted(best, key=lambda g: g.layers))


def _kept_as(spec: KVCacheSpec, all_specs: Iterable[KVCacheSpec], tokens: int) -> KVCacheSpec:
    """The spec of the furthest reach that covers `spec` and keeps no more of a sequence of that length."""
    found = [
        s for s in dict.fromkeys(all_specs) if s.blocks(tokens) <= spec.blocks(tokens) and _covers(s, spec, tokens)
    ]
    return max(found, key=lambda s: s.reads.reach or math.inf)


def _covers(kept: KVCacheSpec, spec: KVCacheSpec, tokens: int) -> bool:
    """Whether a layer of `spec` finds all that it reads where blocks are kept for another spec."""
    position = np.arange(tokens + 1)
    mine, its = (np.maximum(0, s.reads.first(position)) for s in (kept, spec))
    return kept.block_size == spec.block_size and kept.tensors == spec.tensors and bool(np.all(mine <= its))


def _sizes(counts: Iterable[int]) -> list[int]:
    """The sizes of groups that are worth a look: those that divide one of the counts evenly."""
    return sorted({-(-count // parts) for count in counts for parts in range(1, count + 1)})


def _parts(layers: list[int], most: int) -> list[tuple[int, ...]]:
    return [tuple(layers[i : i + most]) for i in range(0, len(layers), most)]


def _named(groups: list[KVCacheGroup]) -> tuple[KVCacheGroup, ...]:
    """The groups with inputs of their own; work items are shared by those whose tokens read the same."""
    rules = list(dict.fromkeys(g.spec.reads for g in groups))

    def name(base: str, number: int, of: int) -> str:
        return base if of == 1 else f"{base}.{number}"

    return tuple(
        KVCacheGroup(
            spec=group.spec,
            layers=group.layers,
            block_tables=name("block_tables", i, len(groups)),
            slots=name("slots", i, len(groups)),
            items=name("attn_items", rules.index(group.spec.reads), len(rules)),
        )
        for i, group in enumerate(groups)
    )
