"""Tiles of matrix products that replace the generator's own choice, and the candidates that a tuner races.

A tile decides which rows and columns are computed together and by whom, never the order of a sum: results have the same
bits whatever the tile.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from inferir.codegen.backend import Context
from inferir.codegen.cache.cache_key import source_hash
from inferir.codegen.tunables import Product
from inferir.codegen.tvm.kernels.matmul import MatmulTile, choose_tile
from inferir.codegen.tvm.kernels.microkernel import MicroKernel, micro_kernel
from inferir.ir.contract.bucket import Bucket
from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.weight_blocks import BLOCK

_DECIDES_SPEED = (
    "formats",
    "kernels/kv_prefetch.py",
    "build/build_module.py",
    "llvm/llvm_body.py",
    "llvm/llvm_convert.py",
    "llvm/llvm_lib.py",
    "llvm/llvm_math.py",
    "kernels/matmul.py",
    "kernels/microkernel.py",
)


def default_tile(product: Product, features: frozenset[str]) -> MatmulTile:
    """The generator's own choice."""
    p = product
    return choose_tile(k=p.k, n=p.n, dtype=p.dtype, max_rows=p.most, features=features, format=p.format)


def micro_of(product: Product) -> MicroKernel:
    """How it is multiplied. Raises `CodegenError` if the format cannot be."""
    return micro_kernel(product.format, product.dtype)


def product_of(linear: Node, bucket: Bucket, max_rows: int) -> Product:
    """The product that the node `linear`, a tensor.linear_packed, is in `bucket`; `max_rows` bounds logit rows."""
    x = linear.operands[0].type
    dtype = "bf16" if x.dtype is DType.BF16 else "f32"
    lo, most = (1, min(bucket.most, max_rows)) if x.shape[0] == R else (bucket.lo, bucket.most)
    of = linear.attrs
    return Product(int(x.shape[1]), of["n"], dtype, of["interleave"], lo, most, of["format"])


def linear_of(region: Node) -> Node | None:
    """The product that a region multiplies, if it is one."""
    body: Graph = region.attrs["body"]
    linear = next((n for n in body.nodes if n.op == "tensor.linear_packed"), None)
    return linear if region.attrs["anchor"] == "matmul" else None


def products(regions: Iterable[Node], context: Context) -> dict[Product, Node]:
    """The matrix products of a bucket, each with the first region that computes it."""
    found: dict[Product, Node] = {}
    for region in regions:
        linear = linear_of(region)
        if linear is not None:
            found.setdefault(product_of(linear, context.bucket, context.limits.bound("R")), region)
    return found


def candidates(product: Product, features: frozenset[str]) -> tuple[MatmulTile, ...]:
    """Tiles worth measuring, the default first: other heights and panels, and more or fewer blocks per chunk."""
    default = default_tile(product, features)
    total = -(-product.n // BLOCK)
    heights = [default.rows, min(product.most, micro_of(product).most_rows(2, features)), max(1, default.rows * 2 // 3)]
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
    if product.most <= micro_of(product).reread_rows(features):
        return [default.panel]
    wanted = (default.panel, default.panel // 2, default.panel * 2)
    return [-(-min(p, product.most) // rows) * rows for p in wanted if p >= rows]


@cache
def generator_version() -> str:
    """Version of what decides how fast a product's kernel is: the source of its parts, and TVM."""
    here = Path(__file__).resolve().parents[1]
    digest = source_hash([here / name for name in _DECIDES_SPEED])
    return f"{digest[:16]}, apache-tvm {importlib.metadata.version('apache-tvm')}"
