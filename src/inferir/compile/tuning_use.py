"""From tuning records to tiles: which records speak of the kernels that are to be built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferir.codegen.tvm.bucket_library import products
from inferir.codegen.tvm.kernels.matmul import MatmulTile
from inferir.codegen.tvm.tuning.tiles import NO_TILES, Product, Tiles, generator_version
from inferir.compile.tuning_records import TileRecord, TuningKey, TuningRecord
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Node

OTHER_TARGET = "for another target"
OTHER_GENERATOR = "for another version of the code generator"
OTHER_SHAPE = "for products that are not in this model and its buckets"
FEWER_THREADS = "measured with fewer threads than another"


@dataclass(frozen=True)
class TuningUse:
    """What a compile took from a file of records.

    tiles: those that differ from the generator's own choice; held: records that say that this choice is the best;
    ignored: how many records were not used, by reason.
    """

    path: Path
    tiles: Tiles = field(default_factory=lambda: NO_TILES)
    held: int = 0
    ignored: Mapping[str, int] = field(default_factory=dict)


def tuning_key(product: Product, target: Target, threads: int) -> TuningKey:
    """The key under which the measurement of a product is recorded."""
    return TuningKey(
        k=product.k,
        n=product.n,
        dtype=product.dtype,
        interleave=product.interleave,
        lo=product.lo,
        most=product.most,
        target=target,
        threads=threads,
        generator=generator_version(),
    )


def tile_record(tile: MatmulTile) -> TileRecord:
    return TileRecord(rows=tile.rows, panel=tile.panel, blocks=tile.blocks)


def all_products(
    regions: Iterable[Node], buckets: Iterable[Bucket], limits: Limits
) -> dict[Product, tuple[Node, Bucket]]:
    """Every matrix product of every bucket, with a region and a bucket that have it."""
    nodes = list(regions)
    found: dict[Product, tuple[Node, Bucket]] = {}
    for bucket in buckets:
        for product, region in products(nodes, bucket, limits).items():
            found.setdefault(product, (region, bucket))
    return found


def use_records(path: Path, records: Sequence[TuningRecord], wanted: Iterable[Product], target: Target) -> TuningUse:
    """Choose among `records` those for the products `wanted` on `target`.

    Compiling does not depend on the machine that compiles: where a product was measured with several numbers of
    threads, the largest counts.
    """
    shapes = set(wanted)
    best: dict[Product, TuningRecord] = {}
    ignored: Counter[str] = Counter()
    for record in sorted(records, key=lambda r: -r.key.threads):
        key = record.key
        product = Product(key.k, key.n, key.dtype, key.interleave, key.lo, key.most)
        if key.target != target:
            ignored[OTHER_TARGET] += 1
        elif key.generator != generator_version():
            ignored[OTHER_GENERATOR] += 1
        elif product not in shapes:
            ignored[OTHER_SHAPE] += 1
        elif product in best:
            ignored[FEWER_THREADS] += 1
        else:
            best[product] = record
    tiles = {p: _tile(r.tile) for p, r in best.items() if r.tile is not None and r.tile != r.default}
    return TuningUse(path, tiles, len(best) - len(tiles), dict(ignored))


def _tile(record: TileRecord) -> MatmulTile:
    return MatmulTile(record.rows, record.panel, record.blocks)
