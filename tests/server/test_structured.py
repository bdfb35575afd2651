"""Structured output through HTTP: what comes out is valid, and bad or hostile specifications harm nobody else."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from serving import Server

LONG = {"prompt": "beside", "max_tokens": 120, "ignore_eos": True}
BLANKS = {str(i): 100 for i in (197, 198, 220)}  # tab, line feed and space as the tests' tokenizer numbers them
FINITE = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}, "c": {"type": "null"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
ORDERED = {
    "type": "object",
    "properties": {
        "z": {"type": "integer"},
        "a": {"type": "string", "maxLength": 5},
        "m": {"enum": [1, None, "x", True]},
    },
    "required": ["z", "a"],
    "additionalProperties": False,
}


def nested(depth: int) -> str:
    inner = '{"type": "integer"}'
    for i in range(depth):
        inner = f'{{"oneOf": [{inner}, {{"const": "c{i}"}}]}}'
    return inner


def texts(server: Server, spec: dict[str, Any], n: int, **body: Any) -> list[tuple[str, str]]:
    """Text and finish reason of n seeded answers."""
    body = {"max_tokens": 100, "n": n, "seed": 0, "temperature": 1, "structured_outputs": spec, **body}
    answer = server.complete(**body)
    assert answer.status_code == 200, answer.text
    return [(c["text"], c["finish_reason"]) for c in answer.json()["choices"]]


@contextlib.contextmanager
def probing(server: Server) -> Iterator[None]:
    """Requests and health checks are answered during the block, each as if nothing else happened."""
    alone = server.complete(**LONG).json()["choices"]
    over = threading.Event()

    def probe() -> int:
        count = 0
        while not over.is_set() or not count:
            assert server.complete(**LONG).json()["choices"] == alone
            count += 1
        return count

    def check() -> None:
        while not over.is_set():
            assert server.get("/health").status_code == 200
            time.sleep(0.02)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(probe), pool.submit(check)]
        try:
            yield
        finally:
            over.set()
        assert tasks[0].result() > 0
        tasks[1].result()


# --- what is refused --------------------------------------------------------------------------------------------------

BAD: list[dict[str, Any]] = [
    *({"regex": r} for r in ("foo**", "(", "[z-a]", "a{5,2}", "(?<=a)b", r"(a)\1")),
    *({"json": s} for s in ({"type": "foo"}, [], "x", {"pattern": "["}, {"type": "string", "enum": [10**400]})),
    *({"json": {"$ref": r}} for r in ("#", "#/$defs/gone", "other.json#/a")),
    {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
    {"grammar": "root ::= x"},
]


def test_bad_specifications(server: Server) -> None:
    with probing(server):
        for spec in BAD:
            answer = server.complete(structured_outputs=spec)
            assert answer.status_code == 400, spec
            error = answer.json()["error"]
            assert error["param"] == f"structured_outputs.{next(iter(spec))}"
            assert error["message"]


def test_bad_grammars_beside_good_ones(server: Server) -> None:
    good, bad = {"grammar": 'root ::= "yes" | "no"'}, {"grammar": 'root ::= "yes" | missing'}

    def ask(spec: dict[str, Any]) -> int:
        return int(server.complete(structured_outputs=spec).status_code)

    assert [ask(s) for s in (good, bad, good)] == [200, 400, 200]
    others = [{"grammar": f'root ::= "yes" | missing{i}'} for i in range(10)]
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        assert set(pool.map(ask, others + [bad] * 20)) == {400}
    assert ask(good) == 200


HOSTILE: list[dict[str, Any]] = [
    {"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}},
    {"json": {"type": "string", "maxLength": 10**7}},
    {"regex": "(a{1,1000}){1,1000}"},
    {"json": nested(30)},
    {"json": json.dumps({"description": "x" * 5_000_000})},
]


def test_hostile_specifications_hold_nobody_up(server: Server) -> None:
    def memory() -> int:
        pids = {server.process.pid, server.engine_pid()}
        sizes = [re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{p}/status").read_text()) for p in pids]
        return sum(int(s[1]) for s in sizes if s)

    before = memory()
    with probing(server), concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda s: server.complete(structured_outputs=s), HOSTILE))
        statuses = [a.status_code for a in answers]
    assert set(statuses) <= {200, 400}
    assert statuses[3] == 200  # thirty alternatives within one another are no problem
    assert statuses[4] == 400
    assert memory() - before < 500 * 1024


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [{}, BLANKS])
def test_whitespace_is_bounded(server: Server, bias: dict[str, int]) -> None:
    """Even a model that loves blanks comes to the end."""
    found = texts(server, {"json": FINITE}, 50, logit_bias=bias)
    found += texts(server, {"json": FINITE}, 1, logit_bias=bias, temperature=0)
    for text, reason in found:
        assert reason == "stop"
        jsonschema.validate(json.loads(text), FINITE)
    if bias:
        assert all(re.search(r"\s\s", text) for text, _ in found)


@pytest.mark.parametrize("ref", ["#/$defs/node", "#"])
def test_linked_lists(server: Server, ref: str) -> None:
    node = {
        "type": "object",
        "properties": {"v": {"enum": [1, 2]}, "next": {"anyOf": [{"type": "null"}, {"$ref": ref}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    schema = {**node, "$defs": {"node": node}}
    complete = [t for t, reason in texts(server, {"json": schema}, 10) if reason == "stop"]
    assert complete
    for text in complete:
        jsonschema.validate(json.loads(text), schema)
    pointer = {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}, "maxItems": 2}]}
    for text, _ in texts(server, {"json": pointer}, 5):
        jsonschema.validate(json.loads(text), pointer)


def test_other_scripts_are_exact(server: Server) -> None:
    values = ["在线", "Sjöfart", "😀", 'a"b\\c']
    found = texts(server, {"json": {"enum": values}}, 20) + texts(server, {"json": {"enum": values}}, 1, temperature=0)
    assert {t for t, _ in found} <= {json.dumps(v, ensure_ascii=False) for v in values}
    assert len({json.loads(t) for t, _ in found}) > 1
    for text, reason in texts(server, {"regex": "[٠-٩]{3}"}, 20):
        assert reason == "stop"
        assert re.fullmatch("[٠-٩]{3}", text)
    named = {
        "type": "object",
        "properties": {"größe": {"enum": [1, 2]}},
        "required": ["größe"],
        "additionalProperties": False,
    }
    for text, _ in texts(server, {"json": named}, 20):
        assert json.loads(text)["größe"] in (1, 2)
        assert '"größe"' in text


def test_order_of_keys_and_values_that_are_no_strings(server: Server) -> None:
    shapes = set()
    for text, reason in texts(server, {"json": ORDERED}, 50):
        if reason == "stop":
            value = json.loads(text)
            jsonschema.validate(value, ORDERED)
            assert list(value) in (["z", "a"], ["z", "a", "m"])
            shapes.add(tuple(value))
    assert len(shapes) == 2
    assert {t for t, _ in texts(server, {"json": {"const": 3.5}}, 3)} == {"3.5"}
