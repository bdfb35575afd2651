"""Kinds of values: what each accepts, what it becomes, and its schema."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from inferir.server.http.http_errors import ApiError
from inferir.server.openai.kinds import (
    FLAG,
    OBEYED,
    OBJECT,
    Anything,
    Either,
    Field,
    Integer,
    Items,
    Kind,
    Off,
    Record,
    Tagged,
    Text,
    TokenIds,
    Walk,
    read_body,
)

POINT = Record(Field("x", Integer(0, 9), OBEYED, ""), Field("name", Text(), OBEYED, ""))
SHAPE = Tagged("type", {"dot": POINT}, refused={"cube": "; use dot"}, exclusive=True)
EITHER = Either("text or a list", Text(), Items(FLAG))


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (Anything(), [1], [1]),
        (FLAG, True, True),
        (OBJECT, {"a": 1}, {"a": 1}),
        (Text(("a",)), "a", "a"),
        (Integer(1), 5.0, 5),
        (Items(Integer(0), 2), [1.0, 2], [1, 2]),
        (TokenIds(2), [1, 2.0], [1, 2]),
        (EITHER, "x", "x"),
        (EITHER, [True], [True]),
        (Off((False,)), False, False),
        (POINT, {"x": 1.0, "name": None}, {"x": 1, "name": None}),
    ],
)
def test_what_is_accepted(kind: Kind, value: Any, read: Any) -> None:
    jsonschema.validate(value, kind.schema())
    assert kind.read(value, "f", Walk()) == read


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (FLAG, 1, "f must be true or false, not 1"),
        (OBJECT, [], "f must be an object, not a list"),
        (Text(("a", "b")), "c", 'f must be one of "a", "b", not "c"'),
        (Text(most=2), "abc", "f has 3 characters; at most 2 are allowed"),
        (Integer(0, 3), 4, "f must be an integer from 0 to 3, not 4"),
        (Integer(0), True, "f must be an integer of at least 0, not true"),
        (Items(FLAG, 1), [True, True], "f has 2 entries; at most 1 are allowed"),
        (Items(FLAG), [True, 0], "f[1] must be true or false, not 0"),
        (TokenIds(1), ["x"], "f must be a list of token ids"),
        (EITHER, {}, "f must be text or a list, not an object"),
        (Off((False,), "; use g"), True, "f with true is not supported; use g"),
        (Off((False,)), 0, "f with 0 is not supported"),
        (POINT, {"x": 10}, "f.x must be an integer from 0 to 9, not 10"),
        (SHAPE, {"type": "cube"}, 'f.type "cube" is not supported; use dot'),
        (SHAPE, {"type": "line"}, 'f.type must be one of "dot", not "line"'),
        (SHAPE, {}, 'f.type must be one of "dot", not null'),
    ],
)
def test_what_is_refused(kind: Kind, value: Any, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        kind.read(value, "f", Walk())
    assert (refused.value.status, refused.value.message) == (400, message)
    assert str(refused.value.param).startswith("f")


def test_unknown_keys_are_warned_about_or_refused() -> None:
    assert read_body({"nam": 1, "x": 2}, POINT, strict=False) == ["unknown field 'nam'; did you mean name?"]
    many = read_body({f"k{i}": 1 for i in range(14)}, POINT, strict=False)
    assert (len(many), many[-1]) == (11, "and 4 more unknown fields")
    with pytest.raises(ApiError) as refused:
        read_body({"y": 1}, POINT, strict=True)
    assert refused.value.message == "unknown field 'y'"
