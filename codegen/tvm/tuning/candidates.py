"""Tiles of matrix products as a tuner sees them: one product with several tiles, each a kernel of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from inferir.codegen.backend import Context
from inferir.codegen.tunables import Product, Race
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, row_words, scratch_bytes
from inferir.codegen.tvm.kernels.matmul import MatmulTile
from inferir.codegen.tvm.regions import lower_region
from inferir.codegen.tvm.tuning.tiles import candidates, generator_version, products
from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError
from inferir.ir.graph.graph import Node

_LARGEST = {"rows": 64, "panel": 2**20, "blocks": 2**20}


class TileTuning:
    """The choices are `MatmulTile`s."""

    @property
    def version(self) -> str:
        """The source of what decides how fast a product is, and TVM."""
        return generator_version()

    def products(self, regions: Iterable[Node], context: Context) -> dict[Product, Node]:
        """The matrix products of a bucket, each with the first region that computes it."""
        return products(regions, context)

    def candidates(self, product: Product, target: Target) -> tuple[MatmulTile, ...]:
        """Tiles worth measuring, the default first."""
        return candidates(product, frozenset(target.features))

    def race(self, product: Product, region: Node, context: Context) -> Race:
        """The region once per candidate, beside the step driver. Raises `CodegenError`."""
        tiles = self.candidates(product, context.target)
        each = (replace(context, choices={product: tile}) for tile in tiles)
        lowered = [lower_region(f"c{i}", region, one) for i, one in enumerate(each)]
        kernels = [one.kernels[0] for one in lowered]
        source = bucket_module_source(kernels)
        return Race(product, region, tiles, source, lowered[0].args, row_words(kernels), scratch_bytes(kernels))

    def record(self, choice: MatmulTile) -> dict[str, int]:
        """Rows, panel and blocks of a tile."""
        return asdict(choice)

    def choice(self, record: Mapping[str, int]) -> MatmulTile:
        """The tile of a record. Raises `TuningError` naming a size that is missing, unknown or out of range."""
        for name in sorted(record.keys() | _LARGEST.keys()):
            if not 1 <= record.get(name, 0) <= _LARGEST.get(name, 0):
                raise TuningError(f"{name} of a tile is {record.get(name, 'missing')}: no size that a tile can have")
        return MatmulTile(**record)
