"""The choice of a step program."""

from __future__ import annotations

import pytest

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.manifest import BucketRecord
from inferir.ir.errors import EngineError
from inferir.runtime.executor.dispatcher import Dispatcher


def bucket(name: str, lo: int, hi: int, decode: bool) -> tuple[BucketRecord, str]:
    record = BucketRecord(name=name, lo=lo, hi=hi, decode=decode, library="x", kernels=(), program=(), attn_tile=1)
    return record, name


@pytest.mark.parametrize("reverse", [False, True])
def test_decode_programs_are_for_decode_steps_only(reverse: bool) -> None:
    programs = [
        bucket("t1", 1, 8, False),
        bucket("t8", 8, 32, False),
        bucket("d1", 1, 2, True),
        bucket("d2", 2, 5, True),
    ]
    dispatcher = Dispatcher(programs[::-1] if reverse else programs)
    chosen = {(t, d): dispatcher.select(BatchDescriptor(t, d)) for t in (1, 4, 5, 8, 31) for d in (False, True)}
    assert chosen == {
        (1, False): "t1",
        (1, True): "d1",
        (4, False): "t1",
        (4, True): "d2",
        (5, False): "t1",
        (5, True): "t1",
        (8, False): "t8",
        (8, True): "t8",
        (31, False): "t8",
        (31, True): "t8",
    }
    with pytest.raises(EngineError, match="no bucket for a step of 32 tokens"):
        dispatcher.select(BatchDescriptor(32, False))
