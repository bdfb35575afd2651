"""`inferir cache ls|explain|verify|prune`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferir.cli import arguments as a
from inferir.cli.checked_command import Command
from inferir.cli.console import plain, print_json, shortened, show, table
from inferir.cli.units import duration_seconds, size_bytes
from inferir.ir.system.quantities import age, count, size

if TYPE_CHECKING:
    from inferir.codegen.cache.compile_cache import CompileCache, EntryInfo

app = typer.Typer(no_args_is_help=True, help="Look at the compile cache, check it, and make room in it.")

Folder = Annotated[
    Path | None, a.option("DIR", "The cache's folder. Default: INFERIR_CACHE, else ~/.cache/inferir.", "--cache")
]


def _open(folder: Path | None, readonly: bool = False) -> CompileCache:
    """The cache at `folder` or where the environment says. Raises `CacheError` if it is switched off."""
    from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
    from inferir.ir.errors import CacheError

    cache = CompileCache.from_env(CacheOptions(root=folder, readonly=readonly))
    if cache.root is None:
        raise CacheError("the compile cache is switched off (INFERIR_CACHE); name a folder with --cache")
    return cache


@app.command(cls=Command)
def ls(cache: Folder = None, json: a.Json = False) -> None:
    """List entries: kind, digest, size, whether artifacts hold the same bytes, time since the last use."""
    opened = _open(cache, readonly=True)
    entries = opened.ls()
    if json:
        print_json([_entry_json(e) for e in entries])
        return
    now = time.time()
    rows = [(e.kind, e.digest[:12], _what(e), size(e.nbytes), _shared(e), age(now - e.used)) for e in entries]
    kinds = {k: sum(e.nbytes for e in entries if e.kind == k) for k in sorted({e.kind for e in entries})}
    parts = [f"{k} {size(n)}" for k, n in kinds.items()]
    shared = sum(e.shared for e in entries)
    parts += [f"{size(shared)} of it shared with artifacts"] if shared else []
    summary = f"{opened.root}: {count(len(entries), 'entry')}" + (f"; {', '.join(parts)}" if parts else "")
    if rows:
        show(
            table("", ("kind", "digest", "what", "size", "shared", "last used"), rows, right=("size", "last used")),
            plain(summary),
        )
    else:
        show(plain(summary))


@app.command(cls=Command)
def explain(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="The digest of an entry, or its first digits.")],
    cache: Folder = None,
    json: a.Json = False,
) -> None:
    """Show what an entry was made from: the components of its key. A change in any of them is a miss."""
    entry = _open(cache, readonly=True).find(digest)
    if json:
        print_json({**_entry_json(entry), "components": entry.components})
        return
    from inferir.codegen.cache.cache_key import leaves

    rows = [(".".join(path), shortened(text)) for path, text in sorted(leaves(entry.components).items())]
    files = f"{count(len(entry.files), 'file')} ({', '.join(entry.files)}), {size(entry.nbytes)}"
    show(plain(f"{entry.kind} {entry.digest}\n{files}"), table("", ("component", "value"), rows))


@app.command(cls=Command)
def verify(cache: Folder = None, json: a.Json = False) -> None:
    """Read every file; damaged ones are named, their entries dropped, and the exit status is 1.

    Links and what other users could have written are named, too, and left.
    """
    opened = _open(cache)
    damage = opened.verify()
    left = {name for d in damage if d.refused for name in (d.file.name, d.file.parent.name)}
    intact = sum(entry.digest not in left for entry in opened.ls())
    if json:
        found = [[{"file": str(d.file), "reason": d.reason} for d in damage if d.refused is r] for r in (False, True)]
        print_json({"damaged": found[0], "refused": found[1], "intact": intact})
    else:
        for d in damage:
            print(f"{d.file}: {d.reason}")
        refused = sum(d.refused for d in damage)
        text = f"{opened.root}: {count(intact, 'entry')} intact, {len(damage) - refused} damaged and dropped"
        print(text + (f", {refused} refused and left" if refused else ""))
    if damage:
        raise typer.Exit(1)


@app.command(cls=Command)
def prune(
    max_size: Annotated[
        str | None, a.option("SIZE", 'Drop the least recently used entries until this holds, such as "2GiB".')
    ] = None,
    older_than: Annotated[
        str | None, a.option("AGE", 'Drop entries unused for this long, such as "12h" or "30d".')
    ] = None,
    cache: Folder = None,
    json: a.Json = False,
) -> None:
    """Remove entries. What is dropped is built again when it is needed."""
    if max_size is None and older_than is None:
        raise typer.BadParameter("give --max-size, --older-than or both", param_hint="--max-size")
    opened = _open(cache)
    removed = opened.prune(
        max_bytes=None if max_size is None else size_bytes(max_size, "--max-size"),
        max_age=None if older_than is None else duration_seconds(older_than, "--older-than"),
    )
    left = opened.ls()
    if json:
        print_json({"removed": [_entry_json(e) for e in removed], "left": len(left)})
        return
    freed, rest = sum(e.nbytes - e.shared for e in removed), sum(e.nbytes for e in left)
    gone = f"removed {count(len(removed), 'entry')} ({size(freed)})"
    print(f"{opened.root}: {gone}, {count(len(left), 'entry')} left ({size(rest)})")


def _entry_json(entry: EntryInfo) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "digest": entry.digest,
        "bytes": entry.nbytes,
        "shared_bytes": entry.shared,
        "used": entry.used,
        "files": list(entry.files),
    }


def _shared(entry: EntryInfo) -> str:
    return "with artifacts" if entry.shared else ""


def _what(entry: EntryInfo) -> str:
    """A few words from the key's components that tell entries of a kind apart."""
    c: dict[str, Any] = dict(entry.components)
    match entry.kind:
        case "bucket":
            bucket, target = c.get("bucket") or {}, c.get("target") or {}
            kind = "decode " if bucket.get("decode") else ""
            low, high = bucket.get("lo", 0), bucket.get("hi", 0) - 1
            tokens = str(low) if low == high else f"{low}-{high}"
            noun = "token" if high == 1 else "tokens"
            return f"{kind}{tokens} {noun}, {target.get('name', '?')}, {count(len(c.get('regions') or ()), 'kernel')}"
        case "tiles":
            return f"{c.get('product', '?')}, {count(c.get('candidates', 0), 'candidate')}"
        case "graph":
            return f"model {str(c.get('model', '?'))[:12]}"
        case "weights":
            return f"checkpoint {str(c.get('checkpoint', '?'))[:12]}, {c.get('dtype', '?')}"
    return ""
