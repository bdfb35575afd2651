"""What a compile found in the compile cache, kind by kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache, Entry, Miss

NAMES = {
    "graph": "captured graph",
    "tokenizer": "tokenizer",
    "bucket": "kernel library",
    "weight": "packed weight",
}


class RecordingCache(CompileCache):
    """A compile cache that counts hits and misses by kind and keeps the reason of the first miss of each kind.

    A later miss may be compared with what the same compile stored a moment ago, which explains nothing.
    """

    def __init__(self, root: Path | None, readonly: bool = False) -> None:
        super().__init__(root, readonly)
        self.hit_kinds: Counter[str] = Counter()
        self.miss_kinds: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}

    def get(self, kind: str, key: CacheKey) -> Entry | Miss:
        found = super().get(kind, key)
        if isinstance(found, Entry):
            self.hit_kinds[kind] += 1
        else:
            self.miss_kinds[kind] += 1
            self.reasons.setdefault(kind, found.reason)
        return found

    @property
    def kinds(self) -> list[str]:
        """Kinds asked for, in the order of the pipeline."""
        asked = self.hit_kinds.keys() | self.miss_kinds.keys()
        return [k for k in NAMES if k in asked] + sorted(asked - NAMES.keys())
