"""Schedules of a verification: legal for the engine, and together they run every bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_limits import limits

from inferir.ir.contract.bucket import default_buckets, parse_buckets
from inferir.ir.contract.manifest import BucketRecord
from inferir.verify.cases import Part, Schedule, schedules, steps, token_pool


def records(text: str | None, most: int) -> list[BucketRecord]:
    """Empty buckets for the ranges in `text` (None: the defaults)."""
    ranges = default_buckets(most) if text is None else parse_buckets(text, most)
    return [
        BucketRecord(name=b.name, lo=b.lo, hi=b.hi, decode=b.decode, library="", kernels=(), program=(), attn_tile=1)
        for b in ranges
    ]


def run(
    text: str | None, tokens: int, seqs: int, length: int, quick: bool
) -> tuple[list[Schedule], set[tuple[str, str]]]:
    """The schedules, checked against what the engine accepts, and (bucket, kind) of all their steps."""
    buckets = records(text, tokens)
    plan = schedules(buckets, limits(max_tokens=tokens, max_seqs=seqs, max_model_len=length), length - 1, quick)
    for s in plan:
        assert 1 <= len(s.lengths) <= seqs
        assert 1 <= s.chunk <= tokens // len(s.lengths)
        assert all(1 <= n <= length - 1 for n in s.lengths)
    return plan, {(p.bucket, p.kind) for s in plan for parts in steps(s, buckets) for p in parts}


@pytest.mark.parametrize("quick", [True, False])
def test_the_default_buckets_run_every_kind_of_step(quick: bool) -> None:
    _, kinds = run(None, 2048, 64, 2048, quick)
    small = {("t1", "decode")}
    for name in ("t2-4", "t5-8", "t9-16", "t17-64"):
        small |= {(name, kind) for kind in ("prompt", "decode", "mixed")}
    assert kinds >= small | {("t65-2048", "prompt"), ("t65-2048", "mixed")}


def test_decode_only_buckets_run() -> None:
    _, kinds = run("1-64,d1,d2-8", 64, 8, 128, quick=False)
    assert {("d1", "decode"), ("d2-8", "decode"), ("t1-64", "prompt"), ("t1-64", "mixed")} <= kinds


def test_quick_runs_fewer_tokens() -> None:
    def total(quick: bool) -> int:
        return sum(sum(s.lengths) for s in run(None, 2048, 64, 2048, quick)[0])

    assert total(quick=True) * 3 < total(quick=False)


def test_a_bucket_longer_than_any_sequence_takes_several() -> None:
    plan, kinds = run("1-100,101-512", 512, 16, 64, quick=True)
    assert any(len(s.lengths) > 1 and sum(s.lengths) == 101 for s in plan)
    assert {"t1-100", "t101-512"} == {bucket for bucket, _ in kinds}


@given(
    tokens=st.integers(1, 3000),
    seqs=st.integers(1, 64),
    length=st.integers(32, 4096),
    edges=st.sets(st.integers(1, 2999), max_size=5),
    quick=st.booleans(),
)
def test_schedules_are_legal_and_cover_what_a_batch_can_reach(
    tokens: int, seqs: int, length: int, edges: set[int], quick: bool
) -> None:
    seqs = min(seqs, tokens)
    ends = [*sorted(e for e in edges if e < tokens), tokens]
    text = ",".join(f"{low + 1}-{high}" for low, high in zip([0, *ends], ends, strict=False))
    _, kinds = run(text, tokens, seqs, length, quick)
    for bucket in records(text, tokens):
        if bucket.lo <= length - 1 or bucket.lo <= seqs:
            assert bucket.name in {name for name, _ in kinds}


def test_steps_follow_the_engine() -> None:
    buckets = records("1,2-8,9-64", 64)
    found = list(steps(Schedule((3, 6), 2), buckets))
    assert found == [
        [Part("t2-8", "prompt", 0, 0, 2), Part("t2-8", "prompt", 1, 0, 2)],
        [Part("t2-8", "mixed", 0, 2, 1), Part("t2-8", "mixed", 1, 2, 2)],
        [Part("t2-8", "prompt", 1, 4, 2)],
    ]


def test_the_pool_is_the_same_everywhere_and_keeps_to_the_vocabulary() -> None:
    pool = token_pool(3, 20, range(100, 200), 7)
    assert pool == token_pool(3, 20, range(100, 200), 7)
    assert [len(s) for s in pool] == [20, 20, 20]
    assert all(s[0] == 7 and all(100 <= i < 200 for i in s[1:]) for s in pool)
    assert pool[0] != pool[1]
    assert pool[0][:5] == [7, 131, 134, 161, 143]
    assert [s[:10] for s in token_pool(3, 10, range(100, 200), 7)] == [s[:10] for s in pool]
