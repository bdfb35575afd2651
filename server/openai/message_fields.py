"""Fields of messages and tools: what the templates, the tool parser and the grammars get of them."""

from __future__ import annotations

from inferir.server.openai.kinds import (
    DEPENDS,
    FLAG,
    IDLE,
    OBEYED,
    OBJECT,
    REFUSED,
    Anything,
    Either,
    Field,
    Integer,
    Items,
    Off,
    Record,
    Tagged,
    Text,
)

MAX_MESSAGES = 4096
MAX_TOOLS = 128

_BREAKPOINT = Record(
    Field("mode", Text(("explicit",)), IDLE, "every prefix may be found in the cache"),
    Field("ttl", Off(), REFUSED, "the cache promises no lifetime"),
)
_TEXT_PART = Record(
    Field("type", Text(), OBEYED, "`text` everywhere, `refusal` in assistant messages; media are refused"),
    Field("text", Text(), OBEYED, "parts are joined"),
    Field("prompt_cache_breakpoint", _BREAKPOINT, IDLE, "every prefix may be found in the cache"),
)
_REFUSAL_PART = Record(
    Field("type", Text(), OBEYED, "`text` everywhere, `refusal` in assistant messages; media are refused"),
    Field("refusal", Text(), OBEYED, "read as text"),
)
_MEDIA = dict.fromkeys(
    ("image_url", "input_audio", "file", "video_url", "audio_url", "image_embeds", "input_image", "input_file"),
    "; only text is",
)
_TEXT = Either("text or a list of parts", Text(), Items(Tagged("type", {"text": _TEXT_PART}, refused=_MEDIA)))
_SAID = Either(
    "text or a list of parts",
    Text(),
    Items(Tagged("type", {"text": _TEXT_PART, "refusal": _REFUSAL_PART}, refused=_MEDIA)),
)

_CALLED = Record(
    Field("name", Text(), OBEYED, "given to the template"),
    Field("arguments", Anything(), OBEYED, "JSON text or an object; given to the template"),
)
_CALL = Record(
    Field("id", Text(), DEPENDS, "given to the template, which may use it"),
    Field("type", Text(("function",)), OBEYED, "only `function`; `custom` is refused"),
    Field("function", _CALLED, OBEYED, "given to the template"),
    Field("index", Integer(0), IDLE, "of a streamed call that is sent back; the order of the list counts"),
)

_ROLE = Field("role", Text(), OBEYED, "given to the template, which may refuse it")
_CONTENT = Field("content", _TEXT, OBEYED, "given to the template as one text; null is empty")
_NAME = Field("name", Text(), DEPENDS, "given to the template, which may use it")
_TOOL_CALL_ID = Field("tool_call_id", Text(), DEPENDS, "given to the template, which may use it")
_REASONING = tuple(
    Field(name, Text(), DEPENDS, "given to the template, which may use it")
    for name in ("reasoning_content", "reasoning")
)
_ASSISTANT = (
    _ROLE,
    Field("content", _SAID, OBEYED, "given to the template as one text; null is empty"),
    _NAME,
    Field("tool_calls", Items(_CALL, MAX_TOOLS), OBEYED, "given to the template"),
    Field("refusal", Text(), OBEYED, "read as the content where there is none"),
    Field("annotations", Items(Anything()), IDLE, "of an answer that is sent back; they mark its text only"),
    Field("audio", Off(), REFUSED, "text only"),
    Field("function_call", Off(hint="; use tool_calls"), REFUSED, "use `tool_calls`"),
    *_REASONING,
)
_PLAIN = Record(_ROLE, _CONTENT, _NAME)
MESSAGE = Tagged(
    "role",
    {
        "system": _PLAIN,
        "developer": _PLAIN,
        "user": _PLAIN,
        "assistant": Record(*_ASSISTANT),
        "tool": Record(_ROLE, _CONTENT, _NAME, _TOOL_CALL_ID),
    },
    refused={"function": "; use tool"},
    otherwise=Record(*_ASSISTANT, _TOOL_CALL_ID),
)
MESSAGES = Items(MESSAGE, MAX_MESSAGES)

_FUNCTION = Record(
    Field("name", Text(), OBEYED, "what calls are read for; 1 to 64 of the characters A-Z a-z 0-9 _ . -"),
    Field("description", Text(), OBEYED, "given to the template"),
    Field("parameters", OBJECT, OBEYED, "given to the template; a forced call follows this schema"),
    Field("strict", FLAG, DEPENDS, "a forced call follows the schema in any case; else `true` gives a warning"),
    Field("return", OBJECT, DEPENDS, "given to the template, which may use it"),
)
TOOL = Tagged(
    "type",
    {
        "function": Record(
            Field("type", Text(), OBEYED, "only `function`; `custom` is refused"),
            Field("function", _FUNCTION, OBEYED, "a function that the model may call"),
        )
    },
    refused={"custom": "; use a function"},
)
TOOLS = Items(TOOL, MAX_TOOLS)

_NAMED = Record(Field("name", Text(), OBEYED, "the tool to call"))
_CHOSEN = Record(
    Field("type", Text(), OBEYED, "`function` or `allowed_tools`; `custom` is refused"),
    Field("function", _NAMED, OBEYED, "forces a call of this tool"),
)
_ALLOWED_TOOL = Record(
    Field("type", Text(), OBEYED, "only `function`; `custom` is refused"),
    Field("function", Record(Field("name", Text(), OBEYED, "one of the tools")), OBEYED, "a tool that may be called"),
)
_ALLOWED = Record(
    Field("mode", Text(("auto", "required")), OBEYED, "as `tool_choice`, among the allowed tools"),
    Field(
        "tools",
        Items(Tagged("type", {"function": _ALLOWED_TOOL}, refused={"custom": "; use a function"}), MAX_TOOLS),
        OBEYED,
        "the template gets these only, and calls of others are text",
    ),
)
TOOL_CHOICE = Either(
    '"none", "auto", "required" or an object',
    Text(("none", "auto", "required")),
    object=Tagged(
        "type",
        {
            "function": _CHOSEN,
            "allowed_tools": Record(
                Field("type", Text(), OBEYED, "`function` or `allowed_tools`; `custom` is refused"),
                Field("allowed_tools", _ALLOWED, OBEYED, "only some of the tools"),
            ),
        },
        refused={"custom": "; use a function"},
        exclusive=True,
    ),
)
