"""Buckets: ranges of T, the default set, and the text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferir.ir.contract.bucket import Bucket, check_buckets, default_buckets, parse_buckets
from inferir.ir.errors import InferirError


def test_a_bucket_is_a_half_open_range() -> None:
    b = Bucket(2, 5)
    assert [b.covers(n) for n in (1, 2, 4, 5)] == [False, True, True, False]
    assert (b.most, b.name) == (4, "t2-4")
    assert (Bucket(1, 2).name, Bucket(1, 2, decode=True).name) == ("t1", "d1")
    for lo, hi in ((0, 1), (3, 3), (4, 2)):
        with pytest.raises(InferirError, match="is empty"):
            Bucket(lo, hi)


@given(st.integers(1, 10000))
def test_defaults_cover_every_count_exactly_once(most: int) -> None:
    buckets = default_buckets(most)
    assert buckets[0] == Bucket(1, 2)
    assert [b.lo for b in buckets[1:]] == [b.hi for b in buckets[:-1]]
    assert buckets[-1].most == most
    assert check_buckets(buckets, most) == buckets


def test_text_is_parsed_and_sorted() -> None:
    assert parse_buckets("9-64, 1,2-8", 64) == (Bucket(1, 2), Bucket(2, 9), Bucket(9, 65))
    assert parse_buckets("1-64,d1-16", 64) == (Bucket(1, 65), Bucket(1, 17, decode=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a size or range"),
        ("1,2-x", "'2-x' is not a size or range"),
        ("1,-4", "'-4' is not"),
        ("1,8-2,9-64", "'8-2' is empty"),
        ("0-64", "'0-64' is empty"),
        ("1-8,8-64", "t1-8 and t8-64 overlap"),
        ("1-64,d1-8,d8", "d1-8 and d8 overlap"),
        ("1-8,10-64", "9-9 tokens are not covered"),
        ("2-64", "must cover 1-64 tokens"),
        ("1-32", "must cover 1-64 tokens"),
        ("d1-64", "must cover 1-64 tokens"),
    ],
)
def test_bad_text_names_the_item(text: str, message: str) -> None:
    with pytest.raises(InferirError, match=message):
        parse_buckets(text, 64)
