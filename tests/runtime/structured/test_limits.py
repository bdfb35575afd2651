"""Wrong and hostile specifications are refused with a reason, soon, and harm nobody else."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grammars import VOCABULARY, accepts, write

from inferir.ir.contract.step_inputs import mask_words
from inferir.ir.errors import EngineError, QueueFullError, RequestError
from inferir.runtime.structured import Grammar, GrammarCompiler, GrammarLimits, StructuredSpec, binding
from inferir.runtime.structured.grammar import GrammarLimitError, GrammarState
from inferir.runtime.structured.references import Resolver
from inferir.runtime.structured.vocabulary import Vocabulary

Compile = Callable[..., Grammar]
Reason = Callable[..., str]


def nested(depth: int, inner: str = '{"type": "integer"}') -> str:
    """A `oneOf` whose size doubles with every level."""
    for _ in range(depth):
        inner = f'{{"oneOf": [{inner}, {inner}]}}'
    return inner


@pytest.mark.parametrize(
    "pattern", ["foo**", "(", "[z-a]", "a{5,2}", "(?<=a)b", r"(a)\1", "", "a\0", "\ud800", 5, None, "a\\", "(?x) a"]
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


def chain(length: int) -> dict[str, Any]:
    """Definitions that lead to one another."""
    named = {f"d{i}": {"properties": {"n": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**named, f"d{length}": {"type": "null"}}}


def aliases(length: int) -> dict[str, Any]:
    """A long way to one definition."""
    named = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**named, f"d{length}": {"enum": ["a", "b"]}}}


REFUSED = [
    ("regex", "a?" * 1000),
    ("regex", "(" * 5000 + "a" + ")" * 5000),
    ("json_schema", nested(12)),
    ("json_schema", nested(11, '{"properties": {"a": {}}}')),
    ("json_schema", json.dumps({"description": "x" * 5_000_000})),
    ("json_schema", json.dumps({"enum": ["x" * 50 + str(i) for i in range(100_000)]})),
    ("json_schema", "[" * 100_000),
    (
        "json_schema",
        {"anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {} for j in range(4)}} for i in range(2_500)]},
    ),
    ("json_schema", {"enum": [{"a": i, "b": [i]} for i in range(5_000)]}),
    (
        "json_schema",
        {"allOf": [{"anyOf": [{"type": "string", "pattern": f"{i}{j}"} for j in range(4)]} for i in range(6)]},
    ),
    ("json_schema", {"allOf": [{"type": "integer", "multipleOf": p} for p in (9973, 9967, 9949)]}),
    ("json_schema", {"type": "number", "multipleOf": 1e9 + 7}),
    ("json_schema", '{"const": ' + "[" * 400 + "]" * 400 + "}"),
    ("json_schema", {"patternProperties": {f"^k{i}_": {"type": "integer"} for i in range(500)}}),
    ("json_schema", {"properties": {f"p{i}": {} for i in range(500)}, "minProperties": 1}),
    ("grammar", "root ::= r0 r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(30)) + 'r30 ::= "a"'),
    ("grammar", "root ::= " + "(" * 3_000 + '"a"' + ")" * 3_000),
    ("grammar", 'root ::= "a"' + "*" * 3_000),
]
BOUNDED = [
    ("regex", "(a{1,1000}){1,1000}"),
    ("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
    ("regex", "a{0,100000}"),
    ("regex", "(a|b)*a(a|b){30}"),
    ("regex", r"(\p{Lu}\p{Ll}*[\p{P}\s]+){1,200}"),
    ("regex", "|".join(f"w{i * 7919 % 100_003}x" for i in range(1_800))),
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    ("json_schema", {"type": "string", "maxLength": 10**7}),
    ("json_schema", {"type": "string", "minLength": 10**7}),
    ("json_schema", {"type": "string", "maxLength": 10**12}),
    ("json_schema", {"properties": {f"p{i}": {"type": "string"} for i in range(500)}}),
    ("json_schema", {"properties": {f"k{i}": {"enum": [f"v{i}_{j}" for j in range(50)]} for i in range(300)}}),
    ("json_schema", chain(2_500)),
    ("json_schema", aliases(6_000)),
    ("grammar", 'root ::= root root | "a" | ""'),
    (
        "grammar",
        "root ::= r0\n"
        + "".join(f'r{i} ::= "x{i}" | "(" r{i + 1} ")" root\n' for i in range(1_990))
        + "r1990 ::= root",
    ),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=lambda v: str(v)[:50])
def test_what_would_take_too_much_is_refused(compiler: GrammarCompiler, kind: Any, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredSpec(kind, value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert accepts(compiler.compile(StructuredSpec("regex", "fine[0-9]")), "fine1")


@pytest.mark.parametrize(("kind", "value"), BOUNDED, ids=lambda v: str(v)[:50])
def test_large_specifications_are_followed_within_the_limits(compile_: Compile, kind: Any, value: Any) -> None:
    """Whatever was compiled can be followed: a step that exceeds a limit would be an error."""
    before = rss_bytes()
    state, row, draw = (
        compile_(kind, value).new_state(),
        np.zeros(mask_words(len(VOCABULARY.tokens)), np.int32),
        random.Random(0),
    )
    for _ in range(300):
        state.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        assert state.accept(int(allowed[draw.randrange(len(allowed))]))
        if state.finished:
            break
    assert rss_bytes() - before < 150 << 20


def test_thirty_nested_alternatives(compile_: Compile) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for i in range(30):
        schema = {"oneOf": [schema, {"const": f"c{i}"}]}
    grammar = compile_("json_schema", schema)
    assert accepts(grammar, '"c29"')
    assert accepts(grammar, "12")


def test_a_limit_that_a_step_exceeds_ends_that_walk_and_the_grammar_is_made_anew() -> None:
    """Others that follow the same grammar are at most told the same; the next request gets a fresh one."""
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(lexer_states=800, workers=1))
    spec = StructuredSpec("regex", ".{2000}")
    try:
        grammar = compiler.compile(spec)
        state, row = grammar.new_state(), np.zeros(mask_words(len(VOCABULARY.tokens)), np.int32)
        with pytest.raises(GrammarLimitError, match=r"exceeds a limit .*states.*make it simpler") as caught:
            follow(state, row)
        assert caught.value.field == "structured_outputs"
        assert grammar.broken
        again = compiler.compile(spec)
        assert again is not grammar
        again.new_state().fill(row)
    finally:
        compiler.close()


def follow(state: GrammarState, row: Any) -> None:
    for _ in range(2_000):
        state.fill(row)
        assert state.accept(ord("a"))


def test_a_failure_of_the_core_is_not_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic derives from BaseException; it ends this compilation only, and the next one is tried afresh."""
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(workers=1))
    core = binding.load()
    plain, calls = core.matcher, []

    class PanicError(BaseException):
        pass

    def fail(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise PanicError("out of its depth")
        return plain(*arguments)

    monkeypatch.setattr(core, "matcher", fail)
    try:
        with pytest.raises(EngineError, match="out of its depth") as caught:
            compiler.compile(StructuredSpec("choice", ["a"]))
        assert not isinstance(caught.value, RequestError)
        assert accepts(compiler.compile(StructuredSpec("choice", ["a"])), "a")
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


def test_size_and_speed_of_the_result_are_bounded() -> None:
    spec = StructuredSpec("json_schema", {"properties": {f"p{i}": {} for i in range(20)}})
    for limits, word in [
        (GrammarLimits(grammar_symbols=50, workers=1), "too complex"),
        (GrammarLimits(compile_fuel=50, workers=1), "too complex|limit"),
        (GrammarLimits(items_in_row=5, workers=1), "exceeds a limit"),
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
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(cache_entries=3, workers=1))
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


def test_a_grammar_that_has_filled_many_masks_is_made_anew() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(cache_steps=20, workers=1))
    try:
        first = compiler.compile(StructuredSpec("regex", "a{30}"))
        assert compiler.compile(StructuredSpec("regex", "a{30}")) is first
        assert write(first, 0) == "a" * 30
        second = compiler.compile(StructuredSpec("regex", "a{30}"))
        assert second is not first
        assert compiler.compile(StructuredSpec("regex", "a{30}")) is second
    finally:
        compiler.close()


def test_too_many_waiting_and_closing() -> None:
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(pending=2, workers=1))
    waiting = [compiler.compile_async(StructuredSpec("regex", f"w{i}")) for i in range(2)]
    with pytest.raises(QueueFullError, match="try again"):
        compiler.compile_async(StructuredSpec("regex", "w2"))
    compiler.close()
    for future in waiting:
        error = future.exception(timeout=10)
        assert error is None or isinstance(error, EngineError)
    with pytest.raises(EngineError, match="closed"):
        compiler.compile_async(StructuredSpec("regex", "late"))
    compiler.close()


def test_no_process_is_started_and_no_thread_left_behind() -> None:
    processes, threads = children(), set(threading.enumerate())
    compiler = GrammarCompiler(VOCABULARY, GrammarLimits(workers=1))
    compiler.compile(StructuredSpec("choice", ["a"]))
    assert children() <= processes
    compiler.close()
    assert set(threading.enumerate()) <= threads


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()) | {
        c for t in Path("/proc/self/task").iterdir() for c in (t / "children").read_text().split()
    }


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_the_work_of_comparing_parts_is_bounded(monkeypatch: pytest.MonkeyPatch, reason: Reason) -> None:
    """Definitions that double with every level, and chains that are followed from each of their places."""
    resolved = []
    resolve = Resolver.resolve
    monkeypatch.setattr(Resolver, "resolve", lambda self, ref: resolved.append(ref) or resolve(self, ref))
    doubled = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(20)}
    doubled |= {"d20": {"properties": {"a": {}}}, "e": {"properties": {"a": {}}}}
    assert "may both match" in reason(
        "json_schema", {"oneOf": [{"$ref": f"#/$defs/{n}"} for n in ("e", "d0")], "$defs": doubled}
    )
    assert len(resolved) < 1_000
    resolved.clear()
    StructuredSpec("json_schema", aliases(3_000))
    assert len(resolved) < 50_000
    many = [{"anyOf": [{"const": f"{i},{j}"} for j in range(100)]} for i in range(80)]
    assert "too many parts" in reason("json_schema", {"oneOf": many})
