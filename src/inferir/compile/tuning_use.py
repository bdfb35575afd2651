"""From tuning records to choices: which records speak of the kernels that are to be built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inferir.codegen.backend import Context
from inferir.codegen.tunables import Product, Tuning
from inferir.compile.tuning_records import TuningKey, TuningRecord
from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError
from inferir.ir.graph.graph import Node

OTHER_TARGET = "for another target"
OTHER_GENERATOR = "for another version of the code generator"
OTHER_SHAPE = "for products that are not in this model and its buckets"
FEWER_THREADS = "measured with fewer threads than another"


@dataclass(frozen=True)
class TuningUse:
    """What a compile took from a file of records.

    choices: those that differ from the generator's own, by product; held: records that say that its own is the best;
    ignored: how many records were not used, by reason.
    """

    path: Path
    choices: Mapping[Product, Any] = field(default_factory=dict)
    held: int = 0
    ignored: Mapping[str, int] = field(default_factory=dict)


def tuning_key(product: Product, tuning: Tuning, target: Target, threads: int) -> TuningKey:
    return TuningKey(**asdict(product), target=target, threads=threads, generator=tuning.version)


def all_products(
    tuning: Tuning, regions: Iterable[Node], contexts: Iterable[Context]
) -> dict[Product, tuple[Node, Context]]:
    """Every matrix product of every bucket, with a region and a bucket that have it."""
    nodes = list(regions)
    found: dict[Product, tuple[Node, Context]] = {}
    for context in contexts:
        for product, region in tuning.products(nodes, context).items():
            found.setdefault(product, (region, context))
    return found


def use_records(
    path: Path, records: Sequence[TuningRecord], tuning: Tuning, wanted: Iterable[Product], target: Target
) -> TuningUse:
    """Choose among `records` those for the products `wanted` on `target`. Raises `TuningError` for a bad choice.

    Compiling does not depend on the machine that compiles: where a product was measured with several numbers of
    threads, the largest counts.
    """
    shapes = set(wanted)
    best: dict[Product, TuningRecord] = {}
    ignored: Counter[str] = Counter()
    for record in sorted(records, key=lambda r: -r.key.threads):
        key = record.key
        product = Product(key.k, key.n, key.dtype, key.interleave, key.lo, key.most, key.format)
        if key.target != target:
            ignored[OTHER_TARGET] += 1
        elif key.generator != tuning.version:
            ignored[OTHER_GENERATOR] += 1
        elif product not in shapes:
            ignored[OTHER_SHAPE] += 1
        elif product in best:
            ignored[FEWER_THREADS] += 1
        else:
            best[product] = record
    chosen = {p: _choice(path, tuning, r.tile) for p, r in best.items() if r.tile is not None and r.tile != r.default}
    return TuningUse(path, chosen, len(best) - len(chosen), dict(ignored))


def _choice(path: Path, tuning: Tuning, record: Mapping[str, int]) -> Any:
    try:
        return tuning.choice(record)
    except TuningError as error:
        raise TuningError(f"{path}: {error}") from None
