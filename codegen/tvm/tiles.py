"""Tiles of matrix products that replace the generator's own choice, and the candidates that a tuner races.

A tile decides which rows and columns are computed together and by whom, never the order of a sum: results have the same
bits whatever the tile.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from inferir.codegen.backend import Context
from inferir.codegen.cache.source_hash import package_hash
from inferir.codegen.tunables import Product, Race
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, row_words, scratch_bytes
from inferir.codegen.tvm.kernels.matmul import MatmulTile, choose_tile, micro_of
from inferir.codegen.tvm.regions import lower_region
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError
from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.ir.ops.kernel import anchor_of
from inferir.ir.weight_blocks import BLOCK

_LARGEST = {"rows": 64, "panel": 2**20, "blocks": 2**20}
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


def product_of(linear: Node, bucket: Bucket, max_rows: int) -> Product:
    """The product that the node `linear`, a tensor.linear_packed, is in `bucket`; `max_rows` bounds logit rows."""
    x = linear.operands[0].type
    dtype = "bf16" if x.dtype is DType.BF16 else "f32"
    lo, most = (1, min(bucket.most, max_rows)) if x.shape[0] == R else (bucket.lo, bucket.most)
    of = linear.attrs
    return Product(int(x.shape[1]), of["n"], dtype, of["interleave"], lo, most, of["format"])


def linear_of(region: Node) -> Node | None:
    """The product that a region multiplies, if it is one."""
    return anchor_of(region) if region.attrs["anchor"] == "matmul" else None


class TileTuning:
    """The choices are `MatmulTile`s."""

    @property
    def version(self) -> str:
        digest = package_hash(*(f"codegen/tvm/{name}" for name in _DECIDES_SPEED))
        return f"{digest[:16]}, apache-tvm {importlib.metadata.version('apache-tvm')}"

    def products(self, regions: Iterable[Node], context: Context) -> dict[Product, Node]:
        found: dict[Product, Node] = {}
        for region in regions:
            linear = linear_of(region)
            if linear is not None:
                found.setdefault(product_of(linear, context.bucket, context.limits.bound("R")), region)
        return found

    def candidates(self, product: Product, target: Target) -> tuple[MatmulTile, ...]:
        """The default first, then other heights and panels, and more or fewer blocks per task."""
        features = frozenset(target.features)
        default = choose_tile(product, features)
        total = -(-product.n // BLOCK)
        wide = min(product.most, micro_of(product).most_rows(2, features))
        heights = [default.rows, wide, max(1, default.rows * 2 // 3)]
        found = [default]
        for rows in heights:
            for panel in _panels(product, default, rows, features):
                found.append(MatmulTile(rows, panel, default.blocks))
        for rows in heights:
            for blocks in (1, default.blocks // 2, default.blocks * 2, default.blocks * 4):
                if 1 <= blocks <= max(1, total // 4) and (rows == default.rows or blocks == 2 * default.blocks):
                    found.append(MatmulTile(rows, default.panel, blocks))
        return tuple(dict.fromkeys(found))

    def race(self, product: Product, region: Node, context: Context) -> Race:
        tiles = self.candidates(product, context.target)
        each = (replace(context, choices={product: tile}) for tile in tiles)
        lowered = [lower_region(f"c{i}", region, one) for i, one in enumerate(each)]
        kernels = [one.kernels[0] for one in lowered]
        source = bucket_module_source(kernels)
        return Race(product, region, tiles, source, lowered[0].args, row_words(kernels), scratch_bytes(kernels))

    def record(self, choice: MatmulTile) -> dict[str, int]:
        return asdict(choice)

    def choice(self, record: Mapping[str, int]) -> MatmulTile:
        """Raises `TuningError` naming a size that is missing, unknown or out of range."""
        for name in sorted(record.keys() | _LARGEST.keys()):
            if not 1 <= record.get(name, 0) <= _LARGEST.get(name, 0):
                raise TuningError(f"{name} of a tile is {record.get(name, 'missing')}: no size that a tile can have")
        return MatmulTile(**record)


def _panels(product: Product, default: MatmulTile, rows: int, features: frozenset[str]) -> list[int]:
    """Panels for tiles of `rows` rows. Few rows stay together, for their weights should be read once."""
    if product.most <= micro_of(product).reread_rows(features):
        return [default.panel]
    wanted = (default.panel, default.panel // 2, default.panel * 2)
    return [-(-min(p, product.most) // rows) * rows for p in wanted if p >= rows]
