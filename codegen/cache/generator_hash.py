"""What ties generated code to the source of its generator."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from inferir import ir as ir_package
from inferir.codegen.cache.cache_key import source_hash


@cache
def generator_hash(backend: Path) -> str:
    """Digest of the source of the code generator in the folder `backend`, of what all of them share, and of the IR."""
    codegen = Path(__file__).resolve().parents[1]
    shared = [codegen / "lower", codegen / "backend.py", Path(ir_package.__file__).resolve().parent]
    return source_hash([backend, *shared])
