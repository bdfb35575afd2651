"""From a specification to a grammar of the core, compiled and tried."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.step_inputs import mask_words
from inferir.ir.errors import InferirError, RequestError
from inferir.runtime.structured import regexes
from inferir.runtime.structured.binding import Core, lark
from inferir.runtime.structured.gbnf import GbnfError, parse
from inferir.runtime.structured.gbnf_lark import to_lark
from inferir.runtime.structured.grammar import Grammar, GrammarLimitError, first_line
from inferir.runtime.structured.schema_form import core_schema, unwritable
from inferir.runtime.structured.spec import StructuredSpec
from inferir.runtime.structured.tool_parser import CLOSE, OPEN
from inferir.runtime.structured.vocabulary import Vocabulary

_WALK_TOKENS = 48
_REASONS = {
    "fuel": "it is too complex; make it simpler",
    "precomputation": "it is too complex; make it simpler",
    "too big": "it is too complex; make it simpler",
    "too large": "it is too complex; make it simpler",
    "recursion limit": "it is nested too deeply",
    "min/maxProperties": "maxProperties beside optional properties in an object that allows others is not supported",
    "grammar.symbols.len()": "it is too complex; make it simpler",
}


def build(
    core: Core, tokenizer: Any, vocabulary: Vocabulary, spec: StructuredSpec, limits: Any, step_seconds: float
) -> Grammar:
    """Compile `spec` and walk it a little. Raises `RequestError` naming its field and what is wrong."""
    matcher = core.matcher(tokenizer, grammar_text(spec, vocabulary), limits)
    if matcher.is_error():
        raise _refusal(spec, matcher.get_error())
    walk(lambda: Grammar(matcher.deep_copy(), vocabulary, spec.error), vocabulary, spec.error, step_seconds)
    return Grammar(matcher, vocabulary, spec.error)


def grammar_text(spec: StructuredSpec, vocabulary: Vocabulary) -> str:
    """The grammar of `spec` for the core. Raises `RequestError` naming its field and what is wrong."""
    value = spec.value
    match spec.kind:
        case "json_object":
            return lark("start: @json", {"json": core_schema({"type": "object"})})
        case "choice":
            return lark("start: CHOICE\nCHOICE: " + " | ".join(json.dumps(c) for c in dict.fromkeys(value)))
        case "regex":
            return lark(f"start: {regexes.terminal(value)}")
        case "grammar":
            try:
                return lark(to_lark(parse(value)))
            except GbnfError as e:
                raise spec.error(f"the grammar cannot be used: {e}") from None
        case "text_or_calls":
            return _text_or_calls(json.loads(value), vocabulary)
    schema = json.loads(value)
    lost = unwritable(schema)
    if lost is not None:
        raise spec.error(
            f"the JSON schema cannot be used: its objects have further keys beside listed ones, and {lost[:40]!r} "
            "holds a control character, which is not supported together"
        )
    return lark("start: @json", {"json": core_schema(schema)})


def _text_or_calls(value: dict[str, Any], vocabulary: Vocabulary) -> str:
    """JSON of a schema, or calls; the tags of calls are special tokens where the vocabulary has them."""
    schemas = {"json": core_schema(value["schema"]), "call": core_schema(value["calls"])}
    if value["style"] != "hermes":
        return lark("start: @json | @call", schemas)
    ids = {text: token for token, text in vocabulary.special.items()}
    opening, closing = (f"<[{ids[tag]}]>" if tag in ids else json.dumps(tag) for tag in (OPEN, CLOSE))
    more = " (BLANKS call)*" if value["parallel"] else ""
    call = f"call: {opening} BLANKS @call BLANKS {closing}\nBLANKS: /[ \\n]{{0,2}}/"
    return lark(f"start: @json | call{more}\n{call}", schemas)


def walk(
    new_grammar: Callable[[], Grammar],
    vocabulary: Vocabulary,
    error: Callable[[str], RequestError],
    step_seconds: float,
) -> None:
    """Walk random texts of a grammar: it must allow some, and each step must be fast enough for the engine's loop.

    Raises `RequestError`.
    """
    draw = random.Random(0)
    row = np.zeros(mask_words(len(vocabulary.tokens)), np.int32)
    grammar = new_grammar()
    state = grammar.new_state()
    for step in range(_WALK_TOKENS):
        start = time.thread_time()
        try:
            state.fill(row)
        except RequestError as e:
            raise e if step or isinstance(e, GrammarLimitError) else error("it allows no text at all") from None
        accepted = state.accept(_drawn(row, draw))
        if time.thread_time() - start > step_seconds:
            raise error(f"following it takes more than {step_seconds * 1000:.0f} ms per token; make it simpler")
        if not accepted or state.finished:
            if not step and not state.finished:
                raise error("it allows no text at all")
            state = grammar.new_state()


def _drawn(row: npt.NDArray[np.int32], draw: random.Random) -> int:
    """A token that the mask `row` allows, at random; without a look at all others."""
    words = np.flatnonzero(row)
    word = int(words[draw.randrange(len(words))])
    bits = int(row[word]) & 0xFFFFFFFF
    return 32 * word + draw.choice([i for i in range(32) if bits >> i & 1])


def _refusal(spec: StructuredSpec, message: str) -> InferirError:
    """The error for what the core says about a grammar."""
    what = {"json_schema": "the JSON schema", "regex": "the regex", "grammar": "the grammar"}.get(spec.kind, spec.kind)
    reason = regexes.reason(message)
    if reason is None:
        reason = first_line(message)
        reason = next((known for words, known in _REASONS.items() if words in reason), reason)
    return spec.error(f"{what} cannot be used: {reason[:300]}")
