"""Messages of a conversation: checked, in one form, and with every text traced to the message it stands in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from inferir.ir.errors import RequestError
from inferir.runtime.text.traced_text import Origin, trace

Message = Mapping[str, Any]

TOOLS = Origin(None, "tools")
VARIABLES = Origin(None, "variables")

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles of the API. They are the template's words: many templates build a control token out of one."""
_WORD = re.compile(r"\w+")
_OWN_WORDS = ("content", "reasoning", "reasoning_content", "thinking")


def clean(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with their content as one string, without fields that hold nothing.

    Raises `RequestError` naming the message that is malformed.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list of objects with a role and content", "messages")
    if not messages:
        raise RequestError("messages must not be empty", "messages")
    return [_message(m, i) for i, m in enumerate(messages)]


def _message(message: Message, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{index}] needs a role", "messages")
    # Clients write "nothing" in many ways, while templates ask whether a field is there.
    out = {name: value for name, value in message.items() if name in ("role", "content") or not _nothing(value)}
    content, refusal = message.get("content"), message.get("refusal")
    # What an assistant refused to say is what it said, where that is all there is.
    refused = isinstance(refusal, str) and refusal != "" and _nothing(content)
    out["content"] = _content(refusal if refused else content, index)
    if "tool_calls" in out:
        out["tool_calls"] = _tool_calls(out["tool_calls"], index)
    return out


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | Mapping) and not value)


def _content(content: Any, index: int) -> str:
    """One string: parts of text are joined, and null is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"messages[{index}].content must be a string or a list of text parts", "messages")
    if not content:
        raise RequestError(f"messages[{index}] has an empty list as content", "messages")
    return "".join(_part(part, index) for part in content)


def _part(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if not isinstance(part, Mapping) or kind not in ("text", "refusal"):
        raise RequestError(f"messages[{index}] has a part of type {kind!r}; only text is supported", "messages")
    text = part.get(kind)
    if not isinstance(text, str):
        raise RequestError(
            f"messages[{index}] has a part of type {kind!r}, whose {kind!r} must be a string", "messages"
        )
    return text


def _tool_calls(calls: Any, index: int) -> list[dict[str, Any]]:
    """Calls of the history, their arguments as an object where they are one; other text is left to the template."""
    where = f"messages[{index}].tool_calls"
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{where} must be a list", "messages")
    out = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where} must hold functions with a name", "messages")
        given = {k: v for k, v in call.items() if v is not None}
        out.append({**given, "function": {**function, "arguments": _arguments(function.get("arguments"))}})
    return out


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return {} if value is None else value
    if not value.strip():
        return {}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, dict) else value


CallForm = Literal["object", "null", "text"]
"""How a template gets calls: with arguments as an object, and an empty content where there is no text; with null as
content there; or with that and arguments as JSON text, which is how the API writes calls.
"""
CALL_FORMS: tuple[CallForm, ...] = ("object", "null", "text")


def with_calls_as(messages: Sequence[dict[str, Any]], form: CallForm) -> list[dict[str, Any]]:
    """Cleaned messages with their calls in another form."""
    return [_with_calls_as(m, form) if m.get("tool_calls") else m for m in messages]


def _with_calls_as(message: dict[str, Any], form: CallForm) -> dict[str, Any]:
    out = {**message, "content": message["content"] or (None if form != "object" else "")}
    if form == "text":
        out["tool_calls"] = [{**c, "function": _written(c["function"])} for c in message["tool_calls"]]
    return out


def _written(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**function, "arguments": text}


def traced_messages(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """Cleaned messages for the template `source`, with texts that know their message."""
    return [_traced_message(m, i, source) for i, m in enumerate(messages)]


def _traced_message(message: Message, index: int, source: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    model = message["role"] in ("assistant", "model")
    for name, value in message.items():
        if name == "role" and is_template_role(value, source):
            out[name] = value
            continue
        part = {"content": "content", "tool_calls": "calls"}.get(name, "other")
        own = model and name in _OWN_WORDS
        out[name] = traced(value, Origin(index, part, own), "messages", f"messages[{index}].{name}")
    return out


def is_template_role(role: str, source: str) -> bool:
    """Whether a role is a word that the template itself may use: one of the API's, or one that it names."""
    return role in ROLES or (_WORD.fullmatch(role) is not None and (f"'{role}'" in source or f'"{role}"' in source))


def traced(value: Any, origin: Origin, field: str, where: str) -> Any:
    """A value with all texts in it, keys included, from `origin`.

    Raises `RequestError` naming `field` for text that has no UTF-8 form, and for values that are nested too deeply.
    """
    try:
        return _traced(value, origin)
    except UnicodeEncodeError:
        raise RequestError(f"{where} holds half of a surrogate pair, which no text can contain", field) from None
    except RecursionError:
        raise RequestError(f"{where} is nested too deeply", field) from None


def _traced(value: Any, origin: Origin) -> Any:
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
        return trace(value, origin)
    if isinstance(value, Mapping):
        return {_traced(k, origin) if isinstance(k, str) else k: _traced(v, origin) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_traced(v, origin) for v in value]
    return value
