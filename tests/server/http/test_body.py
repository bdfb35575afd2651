"""Strict JSON: every body that is none is a 400 with its reason."""

from __future__ import annotations

import pytest

from inferir.server.http.body import parse_object
from inferir.server.http.http_errors import ApiError


def test_an_object() -> None:
    assert parse_object('{"a": [1, 2.5, null, "é\\u00e9"]}'.encode()) == {"a": [1, 2.5, None, "éé"]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not valid JSON: "),
        (b"[1]", "the body must be a JSON object"),
        (b'{"a": 1', "the body is not valid JSON: "),
        (b'{"a": NaN}', "the body is not valid JSON: NaN is not a JSON number"),
        (b'{"a": 1e999}', "the body is not valid JSON: 1e999 is too large a number"),
        (b'{"a": 1, "a": 2}', "the key 'a' appears twice"),
        (b'{"a": "\xff"}', "the body is not UTF-8: byte 7 is invalid"),
        (b'{"a": "\\ud800"}', "the body has a lone surrogate"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deeply"),
    ],
)
def test_what_is_none(body: bytes, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_object(body)
    assert refused.value.status == 400
    assert refused.value.message.startswith(reason)
