"""Keys of what other distributions may have taken part in: their code decides what is made as ours does."""

from __future__ import annotations

from functools import cache

from inferir.codegen.cache.cache_key import JSON, CacheKey, source_hash
from inferir.ir.plugin_kinds import COMPILE, kinds_of
from inferir.ir.plugin_registry import plugin_sources


@cache
def plugin_digests() -> dict[str, str]:
    """Digest of the source of every installed distribution that takes part in compiling, by name and version."""
    return {origin: source_hash(paths) for origin, paths in plugin_sources(kinds_of(COMPILE)).items()}


def keyed(**components: JSON) -> CacheKey:
    """The key of these components and the installed plug-ins."""
    plugins = plugin_digests()
    return CacheKey({**components, "plugins": plugins} if plugins else components)
