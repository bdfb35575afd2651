"""What ties keys to the code that decides what is made: ours, and that of other distributions that take part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import inferir
from inferir.codegen.cache.cache_key import JSON, CacheKey
from inferir.ir.errors import CacheError
from inferir.ir.plugin_kinds import COMPILE, kinds_of
from inferir.ir.plugin_registry import plugin_sources


def source_hash(package_paths: Iterable[Path]) -> str:
    """Hash of the files under the given folders (or of the given files): their names below the folder and their bytes.

    Where the folders lie, time stamps, bytecode and hidden files do not count. Raises CacheError for a missing path.
    """
    total = hashlib.sha256()
    for root in package_paths:
        for name, file in _source_files(root.resolve()):
            try:
                content = hashlib.sha256(file.read_bytes()).hexdigest()
            except OSError as error:
                raise CacheError(f"{file}: cannot be read: {error.strerror}") from error
            total.update(f"{json.dumps(name)} {content}\n".encode())
        total.update(b"\n")
    return total.hexdigest()


def _source_files(root: Path) -> list[tuple[str, Path]]:
    if root.is_file():
        return [(root.name, root)]
    if not root.is_dir():
        raise CacheError(f"{root}: not found, so generated code cannot be tied to its source")
    found = [(path.relative_to(root), path) for path in root.rglob("*") if path.is_file()]
    return sorted(
        (name.as_posix(), path)
        for name, path in found
        if path.suffix != ".pyc" and not any(part.startswith(".") or part == "__pycache__" for part in name.parts)
    )


@cache
def package_hash(*folders: str) -> str:
    """`source_hash` of folders or files below the package, such as "codegen/lower"."""
    root = Path(next(iter(inferir.__path__)))
    return source_hash([root / folder for folder in folders])


def generator_hash(backend: str) -> str:
    """Digest of the source of the code generator in the folder `backend` of codegen/, of what all of them share, and of
    the IR.
    """
    return package_hash(f"codegen/{backend}", "codegen/lower", "codegen/backend.py", "ir")


@cache
def plugin_digests() -> dict[str, str]:
    """Digest of the source of every installed distribution that takes part in compiling, by name and version."""
    return {origin: source_hash(paths) for origin, paths in plugin_sources(kinds_of(COMPILE)).items()}


def keyed(**components: JSON) -> CacheKey:
    """The key of these components and the installed plug-ins."""
    plugins = plugin_digests()
    return CacheKey({**components, "plugins": plugins} if plugins else components)
