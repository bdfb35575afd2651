"""Tools that a model may call: their declarations, and the grammars that force a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import RequestError
from inferir.runtime.structured.spec import StructuredSpec
from inferir.runtime.text.tool_style import Style

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. parameters: JSON schema of the object of its arguments."""

    name: str
    parameters: Mapping[str, Any]
    description: str = ""


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Tools from the request field `tools` of the OpenAI API. Raises `RequestError` naming field and entry."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestError("tools must be a list", "tools")
    if len(value) > MAX_TOOLS:
        raise RequestError(f"tools has {len(value)} entries, more than {MAX_TOOLS}", "tools")
    tools = tuple(_tool(v, f"tools[{i}]") for i, v in enumerate(value))
    names = [t.name for t in tools]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools declares {name!r} twice", "tools")
    return tools


def chosen_tools(tools: Sequence[Tool], choice: Any) -> tuple[Tool, ...] | None:
    """Tools of which one has to be called, by the request field `tool_choice`; None if none has to.

    choice: None, "none" and "auto" force nothing; "required" forces any; an object names one.
    Raises `RequestError` for any other value, for a choice without tools and for a tool that is not declared.
    """
    if choice in (None, "none") or (choice == "auto" and tools):
        return None
    if choice == "auto":
        raise RequestError('tool_choice="auto" needs tools', "tool_choice")
    if choice == "required":
        if not tools:
            raise RequestError('tool_choice="required" needs tools', "tool_choice")
        return tuple(tools)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    found = tuple(t for t in tools if t.name == name)
    if not found:
        raise RequestError(f"tool_choice names {name!r}, which is not among the tools", "tool_choice")
    return found


def forced_spec(tools: Sequence[Tool]) -> StructuredSpec:
    """The specification of the text that calls exactly one of `tools`: `{"name": ..., "arguments": {...}}`.

    The text has the "json" style whatever the model's own is, and is read with the parser of that style. The schemas of
    arguments must be usable as they stand (see `StructuredSpec`); their references are kept apart.
    """
    calls, shared = [], {}
    for i, tool in enumerate(tools):
        prefix = f"tool{i}"
        shared[prefix] = _moved(dict(tool.parameters), f"#/$defs/{prefix}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/{prefix}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = dict(calls[0]) if len(calls) == 1 else {"anyOf": calls}
    return StructuredSpec("json_schema", {**schema, "$defs": shared}, source="tools")


def text_or_calls(text: StructuredSpec, tools: Sequence[Tool], style: Style, *, parallel: bool) -> StructuredSpec:
    """The specification of an answer that is a text of `text`, a JSON schema, or calls of `tools` in `style`."""
    calls = forced_spec(tools)
    value = {"schema": json.loads(text.value), "calls": json.loads(calls.value), "style": style, "parallel": parallel}
    return StructuredSpec("text_or_calls", json.dumps(value, ensure_ascii=False), text.source)


def _tool(value: Any, where: str) -> Tool:
    if not isinstance(value, dict) or value.get("type") != "function" or not isinstance(value.get("function"), dict):
        raise RequestError(f'{where} must be {{"type": "function", "function": {{...}}}}', "tools")
    function = value["function"]
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{where}.function.name must be 1 to 64 of the characters A-Z a-z 0-9 _ . -", "tools")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise RequestError(f"{where}.function.parameters must be an object, not {type(parameters).__name__}", "tools")
    if parameters.get("type", "object") != "object":
        raise RequestError(f"{where}.function.parameters must describe an object", "tools")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}.function.description must be text", "tools")
    return Tool(name, {"type": "object", **parameters}, description or "")


def _moved(schema: Any, root: str) -> Any:
    """A schema whose local references start at `root`, for embedding it there."""
    if isinstance(schema, list):
        return [_moved(s, root) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            out[key] = root + value[1:]
        elif key in ("enum", "const", "default", "examples"):
            out[key] = value
        elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            out[key] = {name: _moved(child, root) for name, child in value.items()}
        else:
            out[key] = _moved(value, root)
    return out
