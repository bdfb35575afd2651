"""Which records a compile uses, which not, and why."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.codegen.tunables import Product
from inferir.codegen.tvm.kernels.matmul import MatmulTile
from inferir.codegen.tvm.tiles import TileTuning
from inferir.compile.tuning_records import TuningRecord
from inferir.compile.tuning_use import (
    FEWER_THREADS,
    OTHER_GENERATOR,
    OTHER_SHAPE,
    OTHER_TARGET,
    TuningUse,
    tuning_key,
    use_records,
)
from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError

TARGET = Target.named("x86-64-v3")
PRODUCT = Product(64, 256, "bf16", 1, 2, 4)
BIG = Product(64, 4096, "bf16", 2, 2, 4)
DEFAULT, FASTER, FASTEST = MatmulTile(4, 4, 1), MatmulTile(2, 4, 1), MatmulTile(4, 4, 2)
FILE = Path("records.json")
TUNING = TileTuning()


def record(product: Product, tile: MatmulTile | None, threads: int = 2, **changes: Any) -> TuningRecord:
    """A record of `product`; `changes` are fields of its key."""
    return TuningRecord(
        key=msgspec.structs.replace(tuning_key(product, TUNING, TARGET, threads), **changes),
        default=TUNING.record(DEFAULT),
        tile=None if tile is None else TUNING.record(tile),
        default_seconds=2.0,
        seconds=1.0,
        spread=0.1,
        candidates=3,
        rounds=20,
    )


def use(*records: TuningRecord) -> TuningUse:
    return use_records(FILE, records, TUNING, [PRODUCT, BIG], TARGET)


def test_a_record_becomes_a_tile() -> None:
    assert use(record(PRODUCT, FASTER), record(BIG, None)) == TuningUse(FILE, {PRODUCT: FASTER}, 1, {})
    assert use() == TuningUse(FILE, {}, 0, {})


def test_a_record_of_the_default_itself_changes_nothing() -> None:
    assert use(record(PRODUCT, DEFAULT)) == TuningUse(FILE, {}, 1, {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": Target.named("x86-64-v4")}, OTHER_TARGET),
        ({"target": Target(**{**TARGET.record(), "l2_bytes": 1})}, OTHER_TARGET),
        ({"generator": "another"}, OTHER_GENERATOR),
        ({"k": 65}, OTHER_SHAPE),
        ({"n": 320}, OTHER_SHAPE),
        ({"dtype": "f32"}, OTHER_SHAPE),
        ({"interleave": 2}, OTHER_SHAPE),
        ({"lo": 1}, OTHER_SHAPE),
        ({"most": 8}, OTHER_SHAPE),
    ],
)
def test_records_of_something_else_are_counted(changes: dict[str, Any], reason: str) -> None:
    found = use(record(PRODUCT, FASTER, **changes), record(BIG, FASTEST))
    assert found == TuningUse(FILE, {BIG: FASTEST}, 0, {reason: 1})


def test_the_most_threads_count() -> None:
    records = [record(PRODUCT, FASTER, threads=1), record(PRODUCT, FASTEST, threads=16), record(PRODUCT, None, 4)]
    expected = TuningUse(FILE, {PRODUCT: FASTEST}, 0, {FEWER_THREADS: 2})
    assert use(*records) == expected
    assert use(*reversed(records)) == expected


def test_a_choice_that_the_generator_does_not_know_names_the_file() -> None:
    bad = msgspec.structs.replace(record(PRODUCT, FASTER), tile={"rows": 2, "panel": 4, "stages": 3})
    with pytest.raises(TuningError, match=r"records\.json: blocks of a tile is missing"):
        use(bad)


def test_products_are_recorded_as_they_are() -> None:
    assert astuple(PRODUCT) == msgspec.structs.astuple(tuning_key(PRODUCT, TUNING, TARGET, 2))[:7]
