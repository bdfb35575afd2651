"""Malformed and hostile request bodies, by kind. Deterministic for a seed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from benchmarks import fuzz_hostile as hostile
from benchmarks import fuzz_values as values

COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
USER = {"role": "user", "content": "x"}
BASES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x", "max_tokens": 2},
    CHAT: {"messages": [USER], "max_tokens": 2},
    TOKENIZE: {"prompt": "x"},
    DETOKENIZE: {"tokens": [1]},
}
JSON_HEADERS = {"content-type": "application/json"}
Types = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Per route and field, the types that its OpenAPI description allows; none where it says nothing."""


@dataclass(frozen=True)
class Case:
    """A request. malformed: it must be refused; what is only hostile may be answered."""

    kind: str
    path: str
    content: bytes
    malformed: bool
    headers: Mapping[str, str]


def field_types(openapi: Mapping[str, Any]) -> Types:
    out: dict[str, dict[str, tuple[str, ...]]] = {}
    for path in BASES:
        body = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        out[path] = {name: tuple(p.get("type", ())) for name, p in body["properties"].items()}
    return out


def cases(count: int, seed: int, types: Types) -> Iterator[Case]:
    """`count` cases of all kinds in turn."""
    rng = random.Random(seed)
    once = (wrong_type, extreme, broken_json, other_encoding, combination)
    makers = (*once, hostile_value, wrong_type, extreme, hostile_value, combination, hostile_value)
    for index in range(count):
        yield makers[index % len(makers)](rng, types)


def _case(kind: str, path: str, body: Mapping[str, Any], *, malformed: bool = False) -> Case:
    return Case(kind, path, json.dumps(body).encode(), malformed, JSON_HEADERS)


def _route(rng: random.Random) -> str:
    return rng.choice((COMPLETIONS, COMPLETIONS, COMPLETIONS, CHAT, CHAT, CHAT, TOKENIZE, DETOKENIZE))


def _type_of(value: object) -> str:
    """As JSON Schema names it."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def wrong_type(rng: random.Random, types: Types) -> Case:
    """A value of a type that the description of the field does not allow."""
    path = _route(rng)
    name = rng.choice(list(types[path]))
    value = rng.choice((True, 7, -1.5, "x", [], ["x"], {}, {"a": 1}, [[1]], "", "1", "true", 0.5))
    allowed = types[path][name]
    fits = not allowed or _type_of(value) in allowed or (_type_of(value) == "integer" and "number" in allowed)
    return _case("wrong type", path, {**BASES[path], name: value}, malformed=not fits)


def extreme(rng: random.Random, types: Types) -> Case:
    """Some fields at the edge of their types, or beyond them."""
    path = _route(rng)
    body = dict(BASES[path])
    for name in rng.sample(list(types[path]), min(len(types[path]), rng.choice((1, 1, 1, 2, 4)))):
        body[name] = values.made(rng.choice(values.NUMBERS if rng.random() < 0.5 else values.VALUES))
    return _case("extreme", path, body)


def broken_json(rng: random.Random, types: Types) -> Case:
    """Bytes that are no strict JSON object."""
    path = _route(rng)
    good = json.dumps({**BASES[path], "user": 'wörld \u2028 \\ " 🦀', "n": 1}, ensure_ascii=False).encode()
    pick = rng.randrange(6)
    if pick == 0:
        content = good[: rng.randrange(len(good))]
    elif pick == 1:
        at = rng.randrange(1, len(good))
        content = good[:at] + rng.choice(values.BROKEN_PIECES) + good[at:]
    elif pick == 2:
        content = rng.choice(values.NOT_OBJECTS)
    elif pick == 3:
        content = (
            good[:-1] + b', "%s": ' % rng.choice(list(types[path])).encode() + rng.choice(values.BROKEN_VALUES) + b"}"
        )
    elif pick == 4:
        name, value = rng.choice(list(BASES[path].items()))
        content = good[:-1] + f', "{name}": {json.dumps(value)}'.encode() + b"}"
    else:
        deep = rng.choice((100, 1_000, 100_000))
        opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
        end = closing * deep if rng.random() < 0.5 else b""
        content = good[:-1] + b', "metadata": ' + opening * deep + b"1" * bool(end) + end + b"}"
        return Case("deep JSON", path, content, not end, JSON_HEADERS)
    return Case("broken JSON", path, content, _is_malformed(content), JSON_HEADERS)


def _is_malformed(content: bytes) -> bool:
    """Whether the bytes are no strict JSON object."""
    try:
        text = content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
        return not isinstance(value, dict)
    except (ValueError, RecursionError):
        return True


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def other_encoding(rng: random.Random, types: Types) -> Case:
    """Other content types and encodings."""
    path = _route(rng)
    good = json.dumps(BASES[path])
    headers, content = rng.choice(values.ENCODINGS)(good)
    return Case("encoding", path, content, True, headers)


def hostile_value(rng: random.Random, types: Types) -> Case:
    """Schemas, regular expressions, grammars, templates, messages, tools, images and embeddings that mean harm."""
    name = rng.choice(hostile.OFTEN if rng.random() < 0.7 else list(hostile.FIELDS))
    path = CHAT if name in hostile.OF_CHATS or rng.random() < 0.3 else COMPLETIONS
    body = {**BASES[path], name: values.made(rng.choice(hostile.FIELDS[name]))}
    return _case(f"hostile {name}", path, body, malformed=name in hostile.ALWAYS_REFUSED)


def combination(rng: random.Random, types: Types) -> Case:
    """Several fields at once, with values that may well be good."""
    path = rng.choice((COMPLETIONS, CHAT))
    known = [name for name in values.PLAUSIBLE if name in types[path]]
    names = rng.sample(known, rng.randint(1, 6))
    body = {**BASES[path], **{name: rng.choice(values.PLAUSIBLE[name]) for name in names}}
    if rng.random() < 0.2:
        body[rng.choice(list(types[path]))] = rng.choice(values.NUMBERS)
    if isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = min(body["max_tokens"], 3)
    return _case("combination", path, body)
