"""Which records a compile uses, which not, and why."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.codegen.tvm.kernels.matmul import MatmulTile
from inferir.codegen.tvm.tuning.tiles import Product
from inferir.compile.tuning_records import TileRecord, TuningRecord
from inferir.compile.tuning_use import (
    FEWER_THREADS,
    OTHER_GENERATOR,
    OTHER_SHAPE,
    OTHER_TARGET,
    TuningUse,
    tile_record,
    tuning_key,
    use_records,
)
from inferir.ir.contract.target import Target

TARGET = Target.named("x86-64-v3")
PRODUCT = Product(64, 256, "bf16", 1, 2, 4)
BIG = Product(64, 4096, "bf16", 2, 2, 4)
DEFAULT, FASTER, FASTEST = MatmulTile(4, 4, 1), MatmulTile(2, 4, 1), MatmulTile(4, 4, 2)
FILE = Path("records.json")


def record(product: Product, tile: MatmulTile | None, threads: int = 2, **changes: Any) -> TuningRecord:
    """A record of `product`; `changes` are fields of its key."""
    return TuningRecord(
        key=msgspec.structs.replace(tuning_key(product, TARGET, threads), **changes),
        default=tile_record(DEFAULT),
        tile=None if tile is None else tile_record(tile),
        default_seconds=2.0,
        seconds=1.0,
        spread=0.1,
        candidates=3,
        rounds=20,
    )


def use(*records: TuningRecord) -> TuningUse:
    return use_records(FILE, records, [PRODUCT, BIG], TARGET)


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


def test_tiles_are_recorded_as_they_are() -> None:
    assert tile_record(MatmulTile(1, 2, 3)) == TileRecord(rows=1, panel=2, blocks=3)
    assert astuple(PRODUCT) == msgspec.structs.astuple(tuning_key(PRODUCT, TARGET, 2))[:6]
