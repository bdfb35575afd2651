"""What the frontend found out about a model, kept in the compile cache.

A warm compile then needs neither torch nor transformers.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path

from inferir.codegen.cache.cache_key import JSON, CacheKey
from inferir.codegen.cache.compile_cache import CompileCache, Entry
from inferir.codegen.cache.source_hash import keyed, package_hash
from inferir.ir.system.held_folder import scratch_folder


def frontend_key(**components: JSON) -> CacheKey:
    """The key of something the frontend derives from a model; `components` say from what."""
    tools = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")}
    return keyed(**components, tracer=package_hash("frontend", "ir/ops"), toolchain=tools)


def through_cache(cache: CompileCache, kind: str, key: CacheKey, make: Callable[[Path], object]) -> Mapping[str, bytes]:
    """The files stored under `key` by name, or those that `make(folder)` writes, which are stored then.

    A cache that cannot be written raises `CacheError` before `make` is called.
    """
    found = cache.get(kind, key)
    if isinstance(found, Entry):
        return found.files
    cache.require_writable()
    with scratch_folder("trace") as scratch:
        folder = scratch.subfolder("files")
        make(folder)
        files = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
    return cache.put(kind, key, files).files
