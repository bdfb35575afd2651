"""Which layers share block tables, the step inputs these are in, and where the layers' caches lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from inferir.ir.contract.kv_specs import KVCacheSpec, KVTensor


class KVCacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table per sequence, and the step inputs that their kernels read.

    block_tables [S, MB] and slots [T] are the group's own; items [A, 6] is shared by the groups whose tokens read
    the same positions, and None where no kernel takes work items.
    """

    spec: KVCacheSpec
    layers: tuple[int, ...]
    block_tables: str = "block_tables"
    slots: str = "slots"
    items: str | None = "attn_items"

    def caches(self) -> Iterator[tuple[str, int, KVTensor]]:
        """Of every cache of the group: the name of its graph input, its layer, and what it is."""
        return ((f"{t.role}cache.{layer}", layer, t) for layer in self.layers for t in self.spec.tensors)


class KVSlabs(msgspec.Struct, frozen=True, kw_only=True):
    """How layers share cache memory.

    A block belongs to one group at a time, so layers of *different* groups whose blocks have equal sizes may use one
    region of memory (a slab). `slab[group, layer]` is a layer's slab, `pages[slab]` its bytes per block of each tensor.
    """

    slab: dict[tuple[int, int], int]
    pages: tuple[tuple[int, ...], ...]

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes in all slabs together."""
        return sum(map(sum, self.pages))


def plan_slabs(groups: tuple[KVCacheGroup, ...]) -> KVSlabs:
    """Give every layer a slab, with as few slabs as the sizes of blocks allow."""
    slab: dict[tuple[int, int], int] = {}
    pages: list[tuple[int, ...]] = []
    for number, group in enumerate(groups):
        size = tuple(t.nbytes for t in group.spec.tensors)
        free = [i for i, page in enumerate(pages) if page == size]
        while len(free) < len(group.layers):
            free.append(len(pages))
            pages.append(size)
        slab.update(((number, layer), free[i]) for i, layer in enumerate(group.layers))
    return KVSlabs(slab=slab, pages=tuple(pages))


class KVUse(NamedTuple):
    """What a sequence keeps for all layers of one spec: `nbytes` in blocks of `groups` groups."""

    spec: KVCacheSpec
    layers: int
    groups: int
    nbytes: int


def sequence_use(groups: tuple[KVCacheGroup, ...], tokens: int) -> list[KVUse]:
    """What a sequence of `tokens` tokens keeps between two steps, by spec."""
    alike: dict[KVCacheSpec, list[KVCacheGroup]] = {}
    for group in groups:
        alike.setdefault(group.spec, []).append(group)
    block = plan_slabs(groups).block_bytes
    return [
        KVUse(spec, sum(len(g.layers) for g in its), len(its), len(its) * spec.blocks(tokens) * block)
        for spec, its in alike.items()
    ]


def sequence_blocks(groups: tuple[KVCacheGroup, ...], tokens: int) -> int:
    """Blocks that a sequence of `tokens` tokens keeps in all groups together."""
    return sum(g.spec.blocks(tokens) for g in groups)
