"""What a layer keeps per token, and how its cache memory is divided into blocks.

One `KVCacheSpec` describes the cache of one layer. A block (page) holds `block_size` token slots of every KV head. The
kernels' layouts are fixed by the element size: with `kp` = 2 for 16-bit elements and 1 for 32-bit ones, a layer has
two arrays over all `NB` blocks

    k  [NB, kv_heads, head_dim / kp, block_size, kp]        v  [NB, kv_heads, block_size / kp, value_dim, kp]

and token slot `block * block_size + offset`. Block 0 is the null block: it is never handed out, and stands in block
tables for positions that are not kept. The runtime finds the manager of a spec through its class hierarchy, so a new
spec only registers what differs from its base.
"""

from __future__ import annotations

import msgspec

from inferir.ir.graph.dtypes import DType

NULL_BLOCK = 0


class KVCacheSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all specs; `block_size` is the number of token slots per block."""

    block_size: int

    @property
    def page_bytes(self) -> int:
        """Bytes that one block takes in one layer."""
        raise NotImplementedError(type(self).__name__)


class AttentionSpec(KVCacheSpec, frozen=True, kw_only=True):
    """Keys and values of `kv_heads` heads: `head_dim` elements per key and `value_dim` per value, stored as `dtype`."""

    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType

    @property
    def k_page_bytes(self) -> int:
        return self.block_size * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def v_page_bytes(self) -> int:
        return self.block_size * self.kv_heads * self.value_dim * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        return self.k_page_bytes + self.v_page_bytes


class FullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="full_attention"):
    """Every earlier position stays visible, so every block is kept until its request ends."""


class SlidingWindowSpec(AttentionSpec, frozen=True, kw_only=True, tag="sliding_window"):
    """A token at position p sees positions p - window + 1 … p; blocks wholly behind the window can be given back."""

    window: int


AnyKVCacheSpec = FullAttentionSpec | SlidingWindowSpec


class KVCacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of one spec, and the graph inputs through which their kernels find blocks and slots.

    Groups that name the same `block_tables` input share one table per sequence, which then keeps what the most
    demanding of them needs.
    """

    spec: AnyKVCacheSpec
    layers: tuple[int, ...]
    block_tables: str = "block_tables"
    slots: str = "slots"


class KVLanes(msgspec.Struct, frozen=True, kw_only=True):
    """How layers share cache memory.

    A block belongs to one block table at a time, so layers of *different* tables whose pages have equal sizes may use
    one memory region (a lane). `lane[layer]` is a layer's lane, `pages[lane]` its bytes per block for keys and values.
    """

    lane: dict[int, int]
    pages: tuple[tuple[int, int], ...]

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes in all lanes together."""
        return sum(k + v for k, v in self.pages)


def plan_lanes(groups: tuple[KVCacheGroup, ...]) -> KVLanes:
    """Give every layer a lane, with as few lanes as the pages' sizes allow."""
    lane: dict[int, int] = {}
    pages: list[tuple[int, int]] = []
    taken: dict[str, set[int]] = {}
    for group in groups:
        size = (group.spec.k_page_bytes, group.spec.v_page_bytes)
        own = taken.setdefault(group.block_tables, set())
        for layer in group.layers:
            free = next((i for i, page in enumerate(pages) if page == size and i not in own), None)
            if free is None:
                free = len(pages)
                pages.append(size)
            lane[layer] = free
            own.add(free)
    return KVLanes(lane=lane, pages=tuple(pages))
