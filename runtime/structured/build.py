"""From a specification to a serialized grammar. Runs in the worker process, where it may take time, memory or die."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import msgspec
import numpy as np

from inferir.runtime.structured.binding import Core
from inferir.runtime.structured.schema import explicit_schema, patterns
from inferir.runtime.structured.vocabulary import Vocabulary

MAX_WHITESPACE = 5
"""Blanks between two tokens of JSON: room for a line break and two levels of indentation, which models write unasked
(less makes their text worse), and few enough that a model which loves blanks still comes to an end."""

_WALK_TOKENS = 48
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class Job(msgspec.Struct, frozen=True):
    """What to compile. step_seconds: processor time that one token may take later; max_bytes: size of the result."""

    kind: str
    value: str | tuple[str, ...] | None
    step_seconds: float
    max_bytes: int


class Result(msgspec.Struct, frozen=True):
    """The serialized grammar, or the reason why there is none."""

    grammar: str | None = None
    reason: str | None = None


def build(core: Core, info: Any, vocabulary: Vocabulary, job: Job) -> Result:
    """Compile, measure and serialize. Every failure is a reason, except for the death of the process."""
    try:
        compiled = _compile(core, core.compiler(info), job)
        reason = _walk(core, compiled, vocabulary, job.step_seconds)
        if reason is not None:
            return Result(reason=reason)
        if core.memory_bytes(compiled) > job.max_bytes:
            return Result(reason=f"its compiled form exceeds {job.max_bytes >> 20} MiB; make it simpler")
        text = core.serialize(compiled)
    except MemoryError:
        return Result(reason="it takes too much memory to compile; make it simpler")
    except (RuntimeError, ValueError, TypeError) as e:
        message = _LOG_PREFIX.sub("", str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__)
        if "bad_alloc" in message:
            message = "it takes too much memory to compile; make it simpler"
        return Result(reason=message)
    if len(text) > 4 * job.max_bytes:
        return Result(reason=f"its compiled form exceeds {4 * job.max_bytes >> 20} MiB; make it simpler")
    return Result(grammar=text)


def choice_grammar(choices: tuple[str, ...]) -> str:
    """A grammar of exactly these strings."""
    return "root ::= " + " | ".join(f'"{_escape(c)}"' for c in dict.fromkeys(choices))


def _compile(core: Core, compiler: Any, job: Job) -> Any:
    value = job.value
    if job.kind == "json_object":
        return core.from_json_schema(compiler, '{"type": "object"}', strict=False, whitespace=MAX_WHITESPACE)
    if job.kind == "choice":
        assert isinstance(value, tuple)
        return core.from_ebnf(compiler, choice_grammar(value))
    assert isinstance(value, str)
    if job.kind == "regex":
        return core.from_regex(compiler, value)
    if job.kind == "grammar":
        return core.from_ebnf(compiler, value)
    schema = json.loads(value)
    for pattern in patterns(schema):  # also those that the compiler would pass over
        core.check_regex(pattern)
    text = json.dumps(explicit_schema(schema), ensure_ascii=False)
    return core.from_json_schema(compiler, text, strict=True, whitespace=MAX_WHITESPACE)


def _walk(core: Core, compiled: Any, vocabulary: Vocabulary, step_seconds: float) -> str | None:
    """Walk random texts of the grammar: it must allow some, and each step must be fast enough for the engine's loop."""
    draw = random.Random(0)
    row = np.zeros(vocabulary.words, np.int32)
    matcher = core.matcher(compiled)
    for step in range(_WALK_TOKENS):
        start = time.thread_time()
        if not matcher.fill_next_token_bitmask(row, 0, False):
            row.fill(-1)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.size])
        if not len(allowed):
            return "it allows no text at all" if step == 0 else None
        token = int(allowed[draw.randrange(len(allowed))])
        accepted = matcher.accept_token(token, False)
        if time.thread_time() - start > step_seconds:
            return f"following it takes more than {step_seconds * 1000:.0f} ms per token; make it simpler"
        if not accepted or matcher.is_terminated():
            matcher = core.matcher(compiled)
    return None


def _escape(text: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
    return "".join(named.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c) for c in text)
