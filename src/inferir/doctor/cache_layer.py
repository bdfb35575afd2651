"""The compile cache: its folder, who may write to it, room, damaged entries, and what killed processes left there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.codegen.cache.entry_files import PREFIX
from inferir.codegen.cache.store import Store
from inferir.doctor.finding import Finding, failure, skipped
from inferir.ir.errors import CacheError
from inferir.ir.system.held_folder import abandoned_names
from inferir.ir.system.quantities import count, size

LAYER = "cache"
LEAST_DISK = 1 << 30
"""Bytes below which compiles of real models are likely to fail: each keeps its packed weights."""
MOST_READ = 1 << 30
"""Bytes of entries that are read here; `inferir cache verify` reads any number."""
_FREE = "free that place, or set INFERIR_CACHE to another folder"


def check_cache(quick: bool = False) -> Iterator[Finding]:
    """Findings about the cache that a compile would use. Nothing of it is changed."""
    cache = CompileCache.from_env()
    if cache.root is None:
        yield skipped(LAYER, "folder", "there is no cache (INFERIR_CACHE is off, or there is no home folder)")
        return
    writable = _writable(cache)
    yield writable
    yield _room(cache.root)
    if writable.state == "ok":
        yield _entries(cache.root, quick)
        yield _abandoned(cache.root)


def _writable(cache: CompileCache) -> Finding:
    assert cache.root is not None
    incoming = Store(cache.root).incoming
    made = [p for p in (incoming, *incoming.parents) if not os.path.lexists(p)]  # innermost first
    try:
        cache.ls()  # raises where the whole cache is refused
        cache.require_writable()
    except CacheError as error:
        return failure(LAYER, "folder", error, "mend its rights, or set INFERIR_CACHE to another folder")
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
    new = " (not made yet)" if cache.root in made else ""
    return Finding(LAYER, "folder", "ok", f"{cache.root}{new} can be written to, and not by other users")


def _room(root: Path) -> Finding:
    there = next(p for p in (root, *root.parents) if p.exists())
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return failure(LAYER, "room", error, _FREE)
    if free >= LEAST_DISK:
        return Finding(LAYER, "room", "ok", f"{size(free)} free")
    advice = "inferir cache prune --max-size makes room, or set INFERIR_CACHE to another folder"
    return Finding(LAYER, "room", "warning", f"only {size(free)} free at {there}", advice)


def _entries(root: Path, quick: bool) -> Finding:
    cache = CompileCache.from_env(CacheOptions(root=root, readonly=True))
    entries = cache.ls()
    total = sum(entry.nbytes for entry in entries)
    what = f"{count(len(entries), 'entry')}, {size(total)}"
    if quick or total > MOST_READ:
        why = "a quick test reads none" if quick else "that is much to read"
        return skipped(LAYER, "entries", f"{why}: {what}", "inferir cache verify reads all of them")
    damage = cache.verify()
    if not damage:
        return Finding(LAYER, "entries", "ok", f"{what}, all intact")
    first = f"{damage[0].file}: {damage[0].reason}"
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    advice = "inferir cache verify names and drops what is damaged; a compile builds it again"
    return Finding(LAYER, "entries", "warning", f"damaged or refused: {first}{more}", advice)


def _abandoned(root: Path) -> Finding:
    incoming, name = Store(root).incoming, "locks"
    try:
        descriptor = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Finding(LAYER, name, "ok", "nothing is being written")
    except OSError as error:
        return failure(LAYER, name, error, _FREE)
    try:
        stale = abandoned_names(descriptor, PREFIX)
        busy = len(os.listdir(descriptor)) - len(stale)
    finally:
        os.close(descriptor)
    if not stale:
        return Finding(LAYER, name, "ok", f"none is stale; {count(busy, 'entry')} being written")
    message = f"stale lock of a process that was killed: {incoming / stale[0]}"
    more = f" (and {len(stale) - 1} more)" if len(stale) > 1 else ""
    advice = "the next compile removes it, and so does inferir cache verify"
    return Finding(LAYER, name, "warning", message + more, advice)
