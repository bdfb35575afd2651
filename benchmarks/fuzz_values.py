"""Values for request fields: at the edges of types, broken JSON, encodings, and what may well be good."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

NUMBERS: list[Any] = [0, -1, 1, 2, 127, 128, 255, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64]
NUMBERS += [
    -(2**63) - 1,
    2**70,
    10**30,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    1e-320,
    1e-7,
    1.5,
    1e308,
    -1e308,
    1e16,
    0.999999,
]

STRINGS: list[Any] = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\u202e",
    "\ufeff",
    "\uffff",
    "🦀" * 30,
    "é" * 50,
    "</s>" * 9,
    "<|im_start|>system\n",
    "%s%n%x",
    "../../etc/passwd",
    "{{ 1/0 }}",
    "'; --",
    "NaN",
    "\r\nx: y",
    lambda: "a" * 20_000,
    lambda: "\U0001f469\u200d" * 3_000,
    lambda: "e\u0301" * 5_000,
]


def nested(depth: int, leaf: Any = 1) -> Any:
    """Lists in lists."""
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def nested_objects(depth: int) -> Any:
    out: Any = {}
    for _ in range(depth):
        out = {"a": out}
    return out


VALUES: list[Any] = [
    *STRINGS,
    True,
    False,
    None,
    [],
    {},
    [None],
    [True],
    [-1],
    [2**63],
    [1.0],
    ["x", 1],
    [[]],
    [[1], "x"],
    [[1], []],
    {"": ""},
    {"-1": 1},
    {"x": 1},
    {"1e3": 5},
    {"99999999999": 1},
    {"5": "x"},
    {"5": 10**400},
    {"٣": 1},
    lambda: nested(50),
    lambda: nested(400),
    lambda: nested_objects(400),
    lambda: [1] * 5_000,
    lambda: ["x"] * 5_000,
    lambda: {str(i): 1 for i in range(5_000)},
    lambda: ["x" * 2_000] * 70,
]

BROKEN_PIECES = [b"\xff", b"\x00", b"\xc0\xaf", b"\xed\xa0\x80", b'"', b"{", b"}", b",", b"\\", b"\n", b"\x1f", b"/**/"]
BROKEN_VALUES = [
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e400",
        b"-1e999999999",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"0x10",
        b"'x'",
        b"undefined",
    ),
    *(
        b"True",
        b"nul",
        b"[1,]",
        b'{"a":1,}',
        b'{"a":1,"a":2}',
        b'"\xff"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'{"\\ud800":1}',
    ),
    *(b'"\\x41"', b'"\\u12"', b'"tab\there"', b"9" * 5000, b"[" * 2000, b"-", b'"'),
]
NOT_OBJECTS = [
    *(b"", b" ", b"null", b"true", b"1", b'"x"', b"[]", b"[{}]", b"\xef\xbb\xbf{}", b"{}{}", b"\x00", b"\x1f\x8b\x08"),
    *(b"--boundary\r\n", b"prompt=x&max_tokens=2", b"{'prompt': 'x'}", b"<xml/>", b"[" * 100_000, b'{"a":' * 100_000),
]

_JSON = "application/json"
ENCODINGS: list[Callable[[str], tuple[dict[str, str], bytes]]] = [
    lambda text: ({"content-type": "text/plain"}, text.encode()),
    lambda text: ({"content-type": "application/x-www-form-urlencoded"}, b"prompt=x"),
    lambda text: ({"content-type": "multipart/form-data; boundary=b"}, b"--b\r\n\r\nx\r\n--b--"),
    lambda text: ({"content-type": "application/octet-stream"}, text.encode()),
    lambda text: ({"content-type": "image/png"}, b"\x89PNG"),
    lambda text: ({"content-type": ""}, b"\xff"),
    lambda text: ({"content-type": ";"}, b"\xff"),
    lambda text: ({"content-type": _JSON}, text.encode("utf-16")),
    lambda text: ({"content-type": _JSON}, text.encode("utf-32")),
    lambda text: ({"content-type": _JSON, "content-encoding": "br"}, text.encode()),
    lambda text: ({"content-type": _JSON, "content-encoding": "gzip"}, text.encode()),
    lambda text: ({"content-type": _JSON, "content-encoding": "gzip"}, gzip.compress(text.encode())[:-9]),
    lambda text: ({"content-type": _JSON, "content-encoding": "gzip"}, gzip.compress(b" " * (64 << 20))),
    lambda text: ({"content-type": f"{_JSON}; charset=utf-16"}, text.encode("utf-16")),
    lambda text: ({"content-type": _JSON}, text.encode() + b"\x00"),
    lambda text: ({"content-type": _JSON}, b"\xef\xbb\xbf" + text.encode()),
]


def made(value: Any) -> Any:
    """A value itself, or what makes it."""
    return value() if callable(value) else value


def user(content: Any, **more: Any) -> list[Any]:
    return [{"role": "user", "content": content, **more}]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

PLAUSIBLE: dict[str, list[Any]] = {
    "max_tokens": [1, 2, 3, 10**9],
    "max_completion_tokens": [1, 2, 3],
    "n": [1, 2, 3, None],
    "stream": [True, False],
    "stream_options": [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, {}, {"x": 1}],
    "temperature": [0, 0.0, 1e-9, 0.7, 2, 100],
    "top_p": [1, 0.5, 1e-9, 0],
    "top_k": [-1, 0, 1, 50, 10**6],
    "min_p": [0, 1, 0.1],
    "seed": [0, -1, 2**63, 2**64 - 1, 2**64],
    "stop": ["x", [], ["a", "b"], "\x00", ["é" * 100]],
    "stop_token_ids": [[], [0], [1, 2], [10**9]],
    "include_stop_str_in_output": [True, False],
    "ignore_eos": [True, False],
    "min_tokens": [0, 1, 3, 10**9],
    "presence_penalty": [-2, 2, 0.5],
    "frequency_penalty": [-2, 2, 0.5],
    "repetition_penalty": [0.01, 1, 100],
    "logit_bias": [{}, {"0": -100}, {"5": 1e308}, {"1": 100, "2": -100}, {str(10**9): 1}],
    "bad_words": [[], ["a"], [" "], ["\x00"], ["é", "x y z"]],
    "allowed_token_ids": [[0], [1, 2, 3], [], [10**9]],
    "logprobs": [0, 1, 20, True, False],
    "top_logprobs": [0, 5, 20],
    "prompt_logprobs": [0, 1, 20],
    "echo": [True, False],
    "best_of": [1, 2],
    "truncate_prompt_tokens": [-1, 1, 5, 10**9],
    "add_special_tokens": [True, False],
    "skip_special_tokens": [True, False],
    "return_token_ids": [True, False],
    "priority": [0, -5, 2**31 - 1],
    "cache_salt": ["a", "x" * 1024, ""],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": {"enum": [1, "b"]}}},
    ],
    "structured_outputs": [
        {"regex": "[ab]+"},
        {"choice": ["a", "b"]},
        {"json": {"type": "integer"}},
        {"json_object": True},
    ],
    "prompt": ["x", [1], [[1], [2]], ["a", "b"], "a" * 60, "", []],
    "messages": [
        user("x"),
        [{"role": "system", "content": "s"}, *user("x")],
        [*user("x"), {"role": "assistant", "content": "y"}],
    ],
    "tools": [[], [TOOL]],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}],
    "parallel_tool_calls": [True, False],
    "add_generation_prompt": [True, False],
    "continue_final_message": [True, False],
}
