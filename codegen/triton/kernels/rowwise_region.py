"""Row-wise regions."""

from __future__ import annotations

from inferir.codegen.triton.kernel_source import KernelSource
from inferir.codegen.triton.rowwise import lower_rowwise
from inferir.ir.graph.graph import Graph


def lower(body: Graph, name: str) -> KernelSource:
    """One kernel, whose programs compute a row or a tile of it. Raises `CodegenError`."""
    return lower_rowwise(name, body)
