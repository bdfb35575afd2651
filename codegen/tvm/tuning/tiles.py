"""Tiles of matrix products that replace the generator's own choice, and the candidates that a tuner races.

A tile decides which rows and columns are computed together and by whom, never the order of a sum: results have the same
bits whatever the tile.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inferir.codegen.cache.cache_key import source_hash
from inferir.codegen.tvm.kernels.matmul import MatmulTile, choose_tile
from inferir.codegen.tvm.kernels.microkernel import BLOCK, most_rows, reread_rows
from inferir.ir.contract.bucket import Bucket
from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node

_DECIDES_SPEED = (
    "kernels/kv_prefetch.py",
    "build/build_module.py",
    "llvm/llvm_body.py",
    "llvm/llvm_convert.py",
    "llvm/llvm_lib.py",
    "llvm/llvm_math.py",
    "kernels/matmul.py",
    "kernels/microkernel.py",
)


@dataclass(frozen=True, order=True)
class Product:
    """What a tile is chosen by: x [`lo` to `most` rows, `k`] times [`k`, `n`] in `dtype`, "bf16" or "f32"."""

    k: int
    n: int
    dtype: str
    interleave: int
    lo: int
    most: int

    def __str__(self) -> str:
        rows = str(self.lo) if self.lo == self.most else f"{self.lo}-{self.most}"
        return f"{self.k} to {self.n} {self.dtype}, {rows} {'row' if self.most == 1 else 'rows'}"

    def default(self, features: frozenset[str]) -> MatmulTile:
        """The generator's own choice."""
        return choose_tile(k=self.k, n=self.n, dtype=self.dtype, max_rows=self.most, features=features)


Tiles = Mapping[Product, MatmulTile]
"""Tiles to use instead of the default; products that are not in it keep theirs."""

NO_TILES: Tiles = {}


def product_of(linear: Node, bucket: Bucket, max_rows: int) -> Product:
    """The product that the node `linear`, a tensor.linear_packed, is in `bucket`; `max_rows` bounds logit rows."""
    x = linear.operands[0].type
    dtype = "bf16" if x.dtype is DType.BF16 else "f32"
    lo, most = (1, min(bucket.most, max_rows)) if x.shape[0] == R else (bucket.lo, bucket.most)
    return Product(int(x.shape[1]), linear.attrs["n"], dtype, linear.attrs["interleave"], lo, most)


def candidates(product: Product, features: frozenset[str]) -> tuple[MatmulTile, ...]:
    """Tiles worth measuring, the default first: other heights and panels, and more or fewer blocks per chunk."""
    default = product.default(features)
    total = -(-product.n // BLOCK)
    heights = [default.rows, min(product.most, most_rows(2, product.dtype, features)), max(1, default.rows * 2 // 3)]
    found = [default]
    for rows in heights:
        for panel in _panels(product, default, rows, features):
            found.append(MatmulTile(rows, panel, default.blocks))
    for rows in heights:
        for blocks in (1, default.blocks // 2, default.blocks * 2, default.blocks * 4):
            if 1 <= blocks <= max(1, total // 4) and (rows == default.rows or blocks == 2 * default.blocks):
                found.append(MatmulTile(rows, default.panel, blocks))
    return tuple(dict.fromkeys(found))


def _panels(product: Product, default: MatmulTile, rows: int, features: frozenset[str]) -> list[int]:
    """Panels for tiles of `rows` rows. Few rows stay together, for their weights should be read once."""
    if product.most <= reread_rows(product.dtype, features):
        return [default.panel]
    wanted = (default.panel, default.panel // 2, default.panel * 2)
    return [-(-min(p, product.most) // rows) * rows for p in wanted if p >= rows]


@cache
def generator_version() -> str:
    """Version of what decides how fast a product's kernel is: the source of its parts, and TVM."""
    here = Path(__file__).resolve().parents[1]
    digest = source_hash([here / name for name in _DECIDES_SPEED])
    return f"{digest[:16]}, apache-tvm {importlib.metadata.version('apache-tvm')}"
