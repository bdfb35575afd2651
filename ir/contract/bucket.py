"""Shape buckets: which range of token counts a set of kernels is made for.

A bucket fixes tiles and unrolling; the actual counts are run-time arguments, so no padding rows are computed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from inferir.ir.errors import InferirError


@dataclass(frozen=True, order=True)
class Bucket:
    """Steps of `lo` <= T < `hi` tokens. With `decode`, every sequence contributes exactly one token."""

    lo: int
    hi: int
    decode: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.lo < self.hi:
            raise InferirError(f"bucket {self.lo}-{self.hi - 1} is empty")

    @property
    def most(self) -> int:
        """The largest number of tokens."""
        return self.hi - 1

    @property
    def name(self) -> str:
        size = str(self.lo) if self.most == self.lo else f"{self.lo}-{self.most}"
        return f"d{size}" if self.decode else f"t{size}"

    def covers(self, tokens: int) -> bool:
        return self.lo <= tokens < self.hi


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """All that the choice of a bucket depends on: tokens, and whether every sequence contributes exactly one."""

    tokens: int
    decode: bool


_EDGES = (1, 4, 8, 16, 64)


def default_buckets(max_tokens: int) -> tuple[Bucket, ...]:
    """Buckets that cover 1 … `max_tokens`: 1, 2-4, 5-8, 9-16, 17-64 and the rest."""
    edges = [e for e in _EDGES if e < max_tokens] + [max_tokens]
    return tuple(Bucket(low + 1, high + 1) for low, high in zip([0, *edges], edges, strict=False))


_ITEM = re.compile(r"^(d?)(\d+)(?:-(\d+))?$")


def parse_buckets(text: str, max_tokens: int) -> tuple[Bucket, ...]:
    """Parse `1,2-8,9-2048` (inclusive ranges; a leading `d` marks a decode-only bucket) and check the result.

    Raises `InferirError` naming the item that is malformed, overlaps another or leaves a gap.
    """
    buckets = []
    for item in text.replace(" ", "").split(","):
        m = _ITEM.match(item)
        if not m:
            raise InferirError(f"buckets: {item!r} is not a size or range such as 1 or 2-8")
        low, high = int(m[2]), int(m[3] or m[2])
        if not 1 <= low <= high:
            raise InferirError(f"buckets: {item!r} is empty")
        buckets.append(Bucket(low, high + 1, m[1] == "d"))
    return check_buckets(buckets, max_tokens)


def check_buckets(buckets: Iterable[Bucket], max_tokens: int) -> tuple[Bucket, ...]:
    """Sorted buckets; those that are not decode-only must cover 1 … `max_tokens` without overlap."""
    ordered = tuple(sorted(buckets, key=lambda b: (b.decode, b.lo)))
    for decode in (False, True):
        group = [b for b in ordered if b.decode is decode]
        for a, b in itertools.pairwise(group):
            if b.lo < a.hi:
                raise InferirError(f"buckets: {a.name} and {b.name} overlap")
            if not decode and b.lo > a.hi:
                raise InferirError(f"buckets: {a.hi}-{b.lo - 1} tokens are not covered")
    general = [b for b in ordered if not b.decode]
    if not general or general[0].lo != 1 or general[-1].most != max_tokens:
        raise InferirError(f"buckets: they must cover 1-{max_tokens} tokens")
    return ordered
