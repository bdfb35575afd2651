"""Wrong and hostile specifications are refused with a reason, soon, and harm nobody else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grammars import VOCABULARY, accepts, write

from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.structured import Grammar, GrammarCompiler, GrammarLimits, StructuredSpec
from inferir.runtime.structured.vocabulary import Vocabulary

Compile = Callable[..., Grammar]
Reason = Callable[..., str]


def nested(depth: int, inner: str = '{"type": "integer"}') -> str:
    """A `oneOf` whose size doubles with every level."""
    for _ in range(depth):
        inner = f'{{"oneOf": [{inner}, {inner}]}}'
    return inner


@pytest.mark.parametrize(
    "pattern", ["foo**", "(", "[z-a]", "a{5,2}", "(?<=a)b", r"(a)\1", "", "a\0", "\ud800", 5, None]
)
def test_bad_regexes(reason: Reason, pattern: Any) -> None:
    assert len(reason("regex", pattern)) > 30


@pytest.mark.parametrize("schema", [{"type": "foo"}, [], "x", '"x"', {"pattern": "["}, None, 1, {"a": {1, 2}}, "{"])
def test_bad_schemas(reason: Reason, schema: Any) -> None:
    assert "schema" in reason("json_schema", schema) or "Unclosed" in reason("json_schema", schema)


@pytest.mark.parametrize("grammar", ["root ::= x", "root ::= [a", "", "start ::= [a]", 'root ::= "a', "root ::= root"])
def test_bad_grammars(reason: Reason, grammar: str) -> None:
    assert reason("grammar", grammar)


@pytest.mark.parametrize("choice", [[], "ab", [1], ["a", ""], None, ["x"] * 10_001, ["a\0"]])
def test_bad_choices(reason: Reason, choice: Any) -> None:
    assert "choice" in reason("choice", choice)


def test_an_unknown_kind_and_a_value_too_many(reason: Reason) -> None:
    assert "xml" in reason("xml", "a")
    assert "no value" in reason("json_object", {"a": 1})


def test_bad_grammars_leave_the_next_ones_alone(compiler: GrammarCompiler) -> None:
    good = StructuredSpec("grammar", 'root ::= "yes" | "no"')
    bad = StructuredSpec("grammar", 'root ::= "yes" | missing')
    for spec in (good, bad, good):
        assert (compiler.compile_async(spec).exception() is None) == (spec is good)
    others = [StructuredSpec("grammar", f'root ::= "yes" | missing{i}') for i in range(10)]
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda s: compiler.compile_async(s).exception(), [bad] * 20 + others))
    assert all(isinstance(e, RequestError) and e.field == "structured_outputs" for e in found)
    assert accepts(compiler.compile(good), "no")


HOSTILE = [
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    ("json_schema", {"type": "string", "maxLength": 10**7}),
    ("json_schema", {"type": "string", "minLength": 10**7}),
    ("regex", "(a{1,1000}){1,1000}"),
    ("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
    ("regex", "a?" * 1000),
    ("regex", "(" * 5000 + "a" + ")" * 5000),
    ("json_schema", nested(12)),
    ("json_schema", nested(11, '{"properties": {"a": {}}}')),
    ("json_schema", json.dumps({"description": "x" * 5_000_000})),
    ("json_schema", json.dumps({"enum": ["x" * 50 + str(i) for i in range(100_000)]})),
    ("json_schema", "[" * 100_000),
    ("json_schema", {"properties": {f"p{i}": {"type": "string"} for i in range(500)}}),
]


def test_hostile_specifications_are_bounded(compiler: GrammarCompiler) -> None:
    """Compiled or refused, and whatever was compiled is fast to follow; a plain grammar is not kept waiting long."""
    row = np.zeros(VOCABULARY.words, np.int32)
    before = rss_bytes()
    futures: list[Future[Grammar]] = []
    start = time.monotonic()
    at_once = []
    for kind, value in HOSTILE:
        try:
            futures.append(compiler.compile_async(StructuredSpec(kind, value)))  # type: ignore[arg-type]
        except RequestError as e:
            at_once.append(str(e))
    assert len(at_once) == 3
    assert all("more than 262144" in e or "not JSON" in e for e in at_once)
    for future in futures:
        error = future.exception(timeout=60)
        if error is None:
            state = future.result().new_state()
            started = time.thread_time()
            state.fill(row)
            assert time.thread_time() - started < 0.2
        else:
            assert isinstance(error, RequestError)
    assert time.monotonic() - start < 60
    assert rss_bytes() - before < 500 << 20
    assert accepts(compiler.compile(StructuredSpec("regex", "fine[0-9]")), "fine1")


def test_thirty_nested_alternatives(compile_: Compile) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for i in range(30):
        schema = {"oneOf": [schema, {"const": f"c{i}"}]}
    grammar = compile_("json_schema", schema)
    assert accepts(grammar, '"c29"')
    assert accepts(grammar, "12")


def test_a_compilation_that_takes_too_long_is_ended_and_the_next_one_runs() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(seconds=0.3, memory_bytes=2 << 30, workers=1))
    try:
        slow = compiler.compile_async(StructuredSpec("json_schema", nested(12)))
        start = time.monotonic()
        with pytest.raises(RequestError, match=r"more than 0\.3 s"):
            slow.result(timeout=30)
        assert time.monotonic() - start < 10
        assert accepts(compiler.compile(StructuredSpec("choice", ["a"])), "a")
    finally:
        compiler.close()


def test_a_dead_worker_is_replaced() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(workers=1))
    try:
        compiler.compile(StructuredSpec("choice", ["a"]))
        (worker,) = compiler._workers
        worker._process.kill()
        with pytest.raises(RequestError, match="fails"):
            compiler.compile(StructuredSpec("choice", ["b"]))
        assert accepts(compiler.compile(StructuredSpec("choice", ["b"])), "b")
    finally:
        compiler.close()


def test_errors_of_the_vocabulary_come_with_the_future_and_are_not_kept() -> None:
    made: list[int] = []

    def fail() -> Vocabulary:
        made.append(1)
        if len(made) == 1:
            raise EngineError("no end-of-text token")
        return VOCABULARY

    compiler = GrammarCompiler(fail, GrammarLimits(workers=1))
    try:
        with pytest.raises(EngineError, match="end-of-text"):
            compiler.compile(StructuredSpec("choice", ["a"]))
        assert accepts(compiler.compile(StructuredSpec("choice", ["a"])), "a")
        assert len(made) == 2
    finally:
        compiler.close()


def test_memory_is_bounded() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(memory_bytes=48 << 20, workers=1))
    try:
        with pytest.raises(RequestError, match="memory"):
            compiler.compile(StructuredSpec("regex", "a?" * 1000))
        assert accepts(compiler.compile(StructuredSpec("choice", ["a"])), "a")
    finally:
        compiler.close()


def test_size_and_speed_of_the_result_are_bounded() -> None:
    spec = StructuredSpec("json_schema", {"properties": {f"p{i}": {} for i in range(20)}})
    for limits, word in [
        (GrammarLimits(grammar_bytes=1000, workers=1), "exceeds"),
        (GrammarLimits(step_seconds=1e-9, workers=1), "per token"),
    ]:
        compiler = GrammarCompiler(VOCABULARY, limits)
        try:
            with pytest.raises(RequestError, match=word):
                compiler.compile(spec)
        finally:
            compiler.close()


def test_equal_specifications_are_compiled_once(compiler: GrammarCompiler) -> None:
    one = compiler.compile_async(StructuredSpec("regex", "once"))
    assert compiler.compile_async(StructuredSpec("regex", "once")) is one
    assert not one.cancel()
    assert compiler.compile_async(StructuredSpec("choice", ["once"])) is not one
    assert compiler.compile_async(StructuredSpec("regex", "once", "response_format")) is not one


def test_the_cache_forgets_the_oldest() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(cache_entries=2, workers=1))
    try:
        first = compiler.compile(StructuredSpec("regex", "a1"))
        second = compiler.compile(StructuredSpec("regex", "a2"))
        assert compiler.compile(StructuredSpec("regex", "a1")) is first
        compiler.compile(StructuredSpec("regex", "a3"))
        assert compiler.compile(StructuredSpec("regex", "a1")) is first
        assert compiler.compile(StructuredSpec("regex", "a2")) is not second
        assert write(second, 0) == "a2"
    finally:
        compiler.close()


def test_too_many_waiting_and_closing() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(pending=2, workers=1))
    waiting = [compiler.compile_async(StructuredSpec("regex", f"w{i}")) for i in range(2)]
    with pytest.raises(RequestError, match="try again"):
        compiler.compile_async(StructuredSpec("regex", "w2"))
    compiler.close()
    for future in waiting:
        error = future.exception(timeout=10)
        assert error is None or isinstance(error, EngineError)
    with pytest.raises(EngineError, match="closed"):
        compiler.compile_async(StructuredSpec("regex", "late"))
    compiler.close()


def test_no_process_is_left_behind() -> None:
    before = children()
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(workers=1))
    compiler.compile(StructuredSpec("choice", ["a"]))
    assert len(children() - before) == 1
    compiler.close()
    assert children() <= before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()) | {
        c for t in Path("/proc/self/task").iterdir() for c in (t / "children").read_text().split()
    }


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
