"""Values that mean harm: schemas, regular expressions, grammars, messages, tools and more, by field."""

from __future__ import annotations

from typing import Any

from benchmarks.fuzz_values import TOOL, made, nested, user

_REF: dict[str, Any] = {"$ref": "#"}
SCHEMAS: list[Any] = [
    *(True, False, [], "x", 1, None, {"type": "no"}, {"type": []}, {"type": ["string", 5]}, {"$ref": "#/nowhere"}),
    *(
        {"$ref": "http://203.0.113.1/x"},
        {"$ref": "file:///etc/passwd"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ),
    *(
        _REF,
        {"properties": {"a": _REF}, "required": ["a"], "type": "object"},
        {"anyOf": [_REF, _REF]},
        {"allOf": [_REF]},
    ),
    *({"enum": []}, {"enum": [{}] * 3}, {"const": 10**400}, {"const": "\x00"}, {"type": "string", "minLength": 10**9}),
    *({"type": "string", "maxLength": -1}, {"type": "string", "pattern": "("}, {"type": "string", "pattern": "(a+)+$"}),
    *(
        {"type": "string", "pattern": "a{1,100000}"},
        {"type": "string", "format": "no-such"},
        {"type": "array", "minItems": 10**9},
    ),
    *(
        {"type": "integer", "minimum": 10**400},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "number", "multipleOf": 0},
    ),
    *(
        {"type": "object", "required": ["a"] * 1000},
        {"type": "object", "minProperties": 50},
        {"not": {}},
        {"if": {}, "then": False},
    ),
    *(
        {"type": "object", "patternProperties": {"(": {}}},
        {"properties": {"": {}, "\x00": {}}},
        {"oneOf": []},
        {"properties": []},
    ),
    lambda: nested_schema(300),
    lambda: nested_schema(40),
    lambda: {"enum": [f"value {i}" for i in range(20_000)]},
    lambda: {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3_000)}},
    lambda: {"anyOf": [{"type": "string", "pattern": "[a-z]{3}" * 40} for _ in range(50)]},
]
REGEXES: list[Any] = [
    *(
        "(",
        ")",
        "[",
        "a{",
        "a{2,1}",
        "*",
        "+",
        "?",
        "a**",
        "\\",
        "(?<=a)b",
        "(?=a)",
        "(a)\\1",
        "(?P<n>a)(?P=n)",
        "[z-a]",
        "[]",
    ),
    *(
        "(a+)+$",
        "(a|a)*",
        "(a*)*b",
        "((a{1,50}){1,50}){1,50}",
        "a{100000}",
        "a{1000}{1000}",
        ".*" * 50,
        "\\p{Greek}+",
        "[^\\x00-\\xff]",
    ),
    *(
        "^$",
        "$^",
        "\x00",
        "\ud83e",
        "(?i)a",
        "[[:alpha:]]",
        "a|",
        "|",
        "()",
        "\\b\\B",
        "\\u{110000}",
        "[\\ud800-\\udfff]",
        "💥{3}",
    ),
    lambda: "(" * 3_000 + ")" * 3_000,
    lambda: "|".join(f"w{i}x" for i in range(1_500)),
    lambda: "x" * 20_000,
]
GRAMMARS: list[Any] = [
    *(
        "",
        "root",
        "root ::=",
        "root ::= root",
        "root ::= a",
        "a ::= b",
        "root ::= root root | root",
        'root ::= "a" root | root "b"',
    ),
    *(
        'root ::= ("a"',
        "root ::= [",
        "root ::= [z-a]",
        'root ::= "a"{1000000}',
        'root ::= "\\ud800"',
        "start: /a/",
        "%import x",
        "\x00",
    ),
    *('root ::= ""', 'root ::= ("" | "a")*', 'root ::= (("a"?)*)*', 'root ::= "a" root ::= "b"'),
    lambda: "root ::= " + "(" * 5_000,
    lambda: "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)), 'r40 ::= "a"']),
    lambda: "root ::= " + " | ".join(f'"{i}"' for i in range(20_000)),
]


def nested_schema(depth: int) -> Any:
    out: Any = {"type": "string"}
    for _ in range(depth):
        out = {"type": "object", "properties": {"a": out}, "required": ["a"]}
    return out


def _structured(kind: str, values: list[Any]) -> list[Any]:
    return [{kind: made(value)} for value in values]


def _format(values: list[Any]) -> list[Any]:
    return [{"type": "json_schema", "json_schema": {"name": "x", "schema": made(value)}} for value in values]


_CALLS: list[Any] = [5, {}, [5], [{}], [{"function": {}}], [{"function": {"name": "f", "arguments": "{"}}]]
_TEMPLATES = [
    "{{ 1/0 }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% include '/etc/passwd' %}",
    "{{ 'a' * 10**9 }}",
]
_URLS = [
    "",
    "x",
    "file:///etc/passwd",
    "http://203.0.113.1/a.png",
    "data:image/png;base64,AAAA",
    "data:,",
    5,
    None,
    {"url": {}},
]


MESSAGES: list[Any] = [
    *(
        [5],
        [None],
        [[]],
        [{}],
        [{"role": None}],
        [{"role": 5, "content": "x"}],
        [{"role": "\x00", "content": "x"}],
        [{"content": "x"}],
    ),
    *(
        user(5),
        user({}),
        user([]),
        user([5]),
        user([{}]),
        user([{"type": "text"}]),
        user([{"type": "text", "text": 5}]),
        user(""),
    ),
    *(user("x", tool_calls=c) for c in _CALLS),
    user("x", tool_calls=[{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]),
    user("x", tool_calls=[{"function": {"name": "f", "arguments": '{"a": 1e999}'}}]),
    user("x", tool_calls=[{"function": {"name": "f", "arguments": "[" * 5_000}}]),
    [{"role": "tool", "content": "x"}],
    [{"role": "assistant", "content": None}],
    [{"role": "<|im_end|>", "content": "<|im_start|>"}],
    user("x", items="y", keys=5, __class__="z", name=["\x00"]),
    *(user([{"type": "image_url", "image_url": {"url": u}}]) for u in _URLS),
    *(
        user([{"type": kind, kind: {"data": "AAAA", "format": "wav"}}])
        for kind in ("input_audio", "file", "video_url", "refusal")
    ),
    lambda: [{"role": "user", "content": "x"}] * 5_000,
    lambda: user([{"type": "text", "text": "x"}] * 5_000),
    lambda: user("x", extra=nested(300)),
]
TOOLS: list[Any] = [
    *(
        [5],
        [{}],
        [None],
        [{"type": "function"}],
        [{"type": "function", "function": {}}],
        [{"type": "x", "function": {"name": "f"}}],
    ),
    [{"type": "function", "function": {"name": "", "parameters": {}}}],
    [{"type": "function", "function": {"name": "x" * 5_000}}],
    [{"type": "function", "function": {"name": "a b\x00"}}],
    [TOOL, TOOL],
    [TOOL] * 200,
    [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}}],
    lambda: [{"type": "function", "function": {"name": "f", "parameters": nested_schema(300)}}],
    lambda: [{"type": "function", "function": {"name": "f", "description": nested(300)}}],
]

FIELDS: dict[str, list[Any]] = {
    "structured_outputs": [
        *_structured("json", SCHEMAS),
        *_structured("regex", REGEXES),
        *_structured("grammar", GRAMMARS),
        *_structured(
            "choice",
            [[], [""], ["a", 1], "a", ["\x00"], ["a"] * 3, ["x" * 300_000], lambda: [str(i) for i in range(20_000)]],
        ),
        *(
            {"json": {}, "regex": "a"},
            {"no": 1},
            {"json_object": 5},
            {"json_object": False},
            {"json": '{"const": "\\ud800"}'},
            {"json": "{"},
        ),
    ],
    "response_format": [
        *_format(SCHEMAS),
        *(
            {},
            {"type": 5},
            {"type": "x"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": []},
            {"type": "text", "a": 1},
        ),
    ],
    "messages": MESSAGES,
    "tools": TOOLS,
    "tool_choice": [
        "x",
        5,
        [],
        {},
        "required",
        {"type": "function"},
        {"type": "function", "function": {"name": 5}},
        {"function": []},
    ],
    "chat_template": _TEMPLATES,
    "chat_template_kwargs": [
        *(
            {"messages": []},
            {"tokenize": True},
            {"chat_template": "x"},
            {"bos_token": 5},
            {"range": 1},
            {"": 1},
            {"self": {}},
            {"loop": 1},
        ),
        *(
            {"raise_exception": 1},
            {"context": 5},
            {"namespace": "x"},
            {"a b": 1},
            {"eos_token": ["\x00"]},
            {"__class__": 1},
        ),
        lambda: {"x": nested(400)},
        lambda: {"bos_token": "x" * 20_000},
    ],
    "prompt_embeds": ["gASVAAAA", "", "AAAA" * 1000, [0.5], {"dtype": "float32"}],
    "documents": [[{"text": "x"}], "x", 5],
    "mm_processor_kwargs": [{"a": 1}, 5],
    "audio": [{"voice": "x"}, 5],
    "lora_request": [{"lora_name": "a", "lora_path": "/etc"}],
    "kv_transfer_params": [{"remote_host": "203.0.113.1"}],
}
OFTEN = ("structured_outputs", "response_format", "messages", "tools", "chat_template_kwargs")
OF_CHATS = frozenset({"messages", "tools", "tool_choice", "chat_template", "chat_template_kwargs"})
ALWAYS_REFUSED = frozenset(
    {"chat_template", "prompt_embeds", "audio", "lora_request", "kv_transfer_params", "mm_processor_kwargs"}
)
