"""Which products of a bucket prefetch which of the keys and values that the next attention reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from inferir.codegen.tvm.kernels.kv_prefetch import KvPrefetch
from inferir.codegen.tvm.regions import single
from inferir.codegen.tvm.tiles import linear_of
from inferir.ir.contract.symbols import Limits
from inferir.ir.graph.dims import T
from inferir.ir.graph.graph import Node

SHARING = 4  # products that prefetch keys and values between two attentions


def prefetch_plan(regions: Mapping[str, Node], limits: Limits) -> dict[str, KvPrefetch]:
    """What products prefetch, by digest of their region."""
    return key_value_shares(_token_products(regions), _kv_sizes(regions.values(), limits))


def key_value_shares(sizes: Mapping[str, int], kv: KvPrefetch | None) -> dict[str, KvPrefetch]:
    """What products prefetch, by digest: the one of largest size for a half of `kv`, the next for a half of the
    rest, and so on, since compute-bound products leave bandwidth idle for as long as they take."""
    if kv is None:
        return {}
    largest = sorted(sizes, key=lambda digest: -sizes[digest])[:SHARING]
    last = len(largest) - 1
    places = [(2**i - 1, 2 ** (i if i == last else i + 1)) for i in range(len(largest))]
    return {d: replace(kv, first=first, stride=stride) for d, (first, stride) in zip(largest, places, strict=True)}


def _token_products(regions: Mapping[str, Node]) -> dict[str, int]:
    """Multiply-adds per row of the products over the rows of all tokens, by digest."""
    sizes: dict[str, int] = {}
    for digest, region in regions.items():
        linear = linear_of(region)
        if linear is not None and linear.operands[0].type.shape[0] == T:
            sizes[digest] = linear.attrs["n"] * int(linear.operands[0].type.shape[1])
    return sizes


def _kv_sizes(regions: Iterable[Node], limits: Limits) -> KvPrefetch | None:
    """What products may prefetch, if the attentions among `regions` have caches of one shape."""
    found = set()
    for region in regions:
        if region.attrs["anchor"] == "attention":
            node = single(region.attrs["body"], "attn.paged")
            keys, values = (
                math.prod(int(d) for d in v.type.shape[1:]) * v.type.dtype.itemsize for v in node.operands[1:3]
            )
            found.add(KvPrefetch(keys, values, node.attrs["block_size"], limits.bound("MB")))
    return found.pop() if len(found) == 1 else None
