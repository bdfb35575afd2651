"""Tool calls are read the same however the text is cut."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_calls import parse_calls

from inferir.runtime.structured.tool_parser import (
    CLOSE,
    MAX_HEAD,
    OPEN,
    CallArguments,
    CallStart,
    Content,
    Event,
    ToolParser,
)
from inferir.runtime.text.tool_style import Style

NAMES = frozenset({"weather", "größe"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[]é\n', max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("k}", max_size=2), inner, max_size=2),
    max_leaves=4,
)
CALLS = st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=2))
PIECES = st.lists(
    st.sampled_from(
        [
            *(OPEN, CLOSE, '{"name": "weather", "arguments": {', '"a": 1}', "}", "{", "[", "]", ",", " ", "\n", "text"),
            *('{"name":', '"weather"', '"arguments"', ":", '"', "\\", "<", "<tool_", '{"name": "x", "arguments": {}}'),
        ]
    ),
    max_size=12,
).map("".join)


def joined(events: list[Event]) -> list[Event]:
    """Events as one reader would collect them."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Content) and isinstance(last, Content):
            out[-1] = Content(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            out[-1] = CallArguments(event.index, last.text + event.text)
        else:
            out.append(event)
    return out


def read(style: Style, text: str, cuts: list[int]) -> list[Event]:
    parser = ToolParser(style, NAMES)
    events: list[Event] = []
    at = [0, *sorted(cuts), len(text)]
    for begin, end in itertools.pairwise(at):
        events += parser.feed(text[begin:end])
    return joined(events + parser.finish())


def call(name: str, arguments: object, style: Style = "json") -> str:
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}\n{text}\n{CLOSE}" if style == "hermes" else text


@given(style=st.sampled_from(["hermes", "json"]), text=PIECES, data=st.data())
def test_cuts_do_not_matter(style: Style, text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    whole = read(style, text, [])
    assert read(style, text, cuts) == whole
    assert read(style, text, list(range(len(text)))) == whole


@given(calls=st.lists(CALLS, min_size=1, max_size=3), seed=st.integers(0, 99))
def test_written_calls_are_read(calls: list[tuple[str, dict[str, object]]], seed: int) -> None:
    expected = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    hermes = "Sure. " + "\n".join(call(*c, "hermes") for c in calls) + "\n"
    assert parse_calls("hermes", NAMES, hermes) == ("Sure.", expected)
    listed = " [" + ", ".join(call(*c) for c in calls) + "]\n"
    assert parse_calls("json", NAMES, listed) == ("", expected)
    assert parse_calls("json", NAMES, call(*calls[0])) == ("", expected[:1])
    cuts = [random.Random(seed).randrange(len(hermes)) for _ in range(9)]
    assert sum(isinstance(e, CallStart) for e in read("hermes", hermes, cuts)) == len(calls)
    assert sum(isinstance(e, CallStart) for e in read("json", listed, [])) == len(calls)


def test_a_stream_gives_the_name_first_and_arguments_as_they_come() -> None:
    parser = ToolParser("hermes", NAMES)
    steps: list[tuple[str, list[Event]]] = [
        ("Let me ", [Content("Let me")]),
        ("look", [Content(" look")]),
        ("\n<tool", []),
        ('_call>{"name": "wea', []),
        ('ther", "arguments"', []),
        (": {", [CallStart(0, "weather"), CallArguments(0, "{")]),
        ('"city": "Pa', [CallArguments(0, '"city": "Pa')]),
        ('ris"}', [CallArguments(0, 'ris"}')]),
        ("}\n</tool_", []),
        ("call>\n", []),
        ("Done", [Content("Done")]),
    ]
    for text, events in steps:
        assert parser.feed(text) == events
    assert parser.finish() == []
    assert parser.calls == 1


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", f"a {OPEN}no json{CLOSE} b"),
        ("hermes", f'{OPEN}{{"name": "unknown", "arguments": {{}}}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"arguments": {{}}, "name": "weather"}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "weather", "arguments": 5}}{CLOSE}'),
        ("hermes", f"{OPEN}{OPEN} x"),
        ("hermes", "a < b, <tool_cal"),
        ("hermes", f"  {OPEN}"),
        ("json", '{"name": "weather"}'),
        ("json", "[1, 2]"),
        ("json", " plain text "),
        ("json", '{"name": "unknown", "arguments": {}}'),
        ("json", '{"name": "' + "x" * 2 * MAX_HEAD),
        ("json", ""),
    ],
)
def test_what_is_no_call_is_content(style: Style, text: str) -> None:
    assert parse_calls(style, NAMES, text) == (text, [])


def test_a_cut_off_call_stands_as_far_as_it_goes() -> None:
    events = read("hermes", f'{OPEN}{{"name": "weather", "arguments": {{"a": "b', [])
    assert events == [CallStart(0, "weather"), CallArguments(0, '{"a": "b')]


def test_parameters_is_another_word_for_arguments() -> None:
    assert parse_calls("json", NAMES, '{"name":"weather","parameters":{}}') == ("", [("weather", "{}")])


def test_a_call_after_a_false_start() -> None:
    text = f"{OPEN}oops {call('weather', {}, 'hermes')}"
    assert parse_calls("hermes", NAMES, text) == (f"{OPEN}oops", [("weather", "{}")])
