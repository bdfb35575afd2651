"""Tools of a chat: what the template and the engine are told of them, and the calls in answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferir.ir.errors import RequestError
from inferir.runtime.structured.spec import StructuredSpec
from inferir.runtime.structured.tool_parser import CLOSE, OPEN, CallArguments, CallStart, Content, Event, ToolParser
from inferir.runtime.structured.tool_specs import Tool, chosen_tools, forced_spec, parse_tools, text_or_calls
from inferir.runtime.text.tokenizer import Tokenizer
from inferir.runtime.text.tool_style import Style
from inferir.server.http.http_errors import ApiError


@dataclass(frozen=True)
class ToolUse:
    """How a request uses tools. forced: the answer is a call and nothing else. spec: its grammar, then.

    parallel: whether an answer may have several calls. marks: tags of calls that are special tokens and would be
    skipped, with their ids.
    """

    style: Style
    names: frozenset[str]
    forced: bool = False
    named: bool = False
    spec: StructuredSpec | None = None
    parallel: bool = True
    marks: Mapping[str, int] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()

    def beside(self, spec: StructuredSpec) -> StructuredSpec:
        """The structure of an answer that is a text of `spec`, or calls. Raises `RequestError`."""
        field_name = spec.source.split(".")[0]
        if spec.kind != "json_schema":
            raise RequestError(
                f"{field_name} ({spec.kind}) and tools exclude each other, as it leaves no room for a call; use a JSON "
                'schema, or tool_choice "none"',
                field_name,
            )
        return text_or_calls(spec, self.tools, self.style, parallel=self.parallel)

    def reader(self) -> CallReader:
        return CallReader(ToolParser(self.style, self.names, self.marks), most=None if self.parallel else 1)


def tool_use(body: Mapping[str, Any], style: Style, tokenizer: Tokenizer | None = None) -> ToolUse | None:
    """What `tools` and `tool_choice` ask for; None if no call may come. Raises `ApiError` naming the field."""
    parallel = body.get("parallel_tool_calls") is not False
    try:
        tools = parse_tools(body.get("tools"))
        tools, choice = _allowed(tools, body.get("tool_choice"))
        chosen = chosen_tools(tools, choice)
        if not tools or choice == "none":
            return None
        if chosen is None:
            names = frozenset(t.name for t in tools)
            skipped = style == "hermes" and body.get("skip_special_tokens") is not False
            return ToolUse(
                style, names, parallel=parallel, marks=_special_marks(tokenizer) if skipped else {}, tools=tools
            )
        names = frozenset(t.name for t in chosen)
        return ToolUse("json", names, True, choice != "required", forced_spec(chosen), parallel)
    except RequestError as error:
        raise ApiError.from_request_error(error) from None


def shown_tools(body: Mapping[str, Any], *, without: bool) -> list[Any]:
    """Tools that the template gets; `without`: none if `tool_choice` is "none"."""
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if without and choice == "none":
        return []
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return list(tools)
    names = _allowed_names(choice)
    return [tool for tool in tools if tool["function"]["name"] in names]


def _allowed(tools: tuple[Tool, ...], choice: Any) -> tuple[tuple[Tool, ...], Any]:
    """The tools that may be called, and the choice among them, of a `tool_choice` that may allow only some."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    names = _allowed_names(choice)
    unknown = next((name for name in names if all(t.name != name for t in tools)), None)
    if unknown is not None:
        raise RequestError(f"tool_choice allows {unknown!r}, which is not among the tools", "tool_choice")
    return tuple(t for t in tools if t.name in names), choice["allowed_tools"]["mode"]


def _allowed_names(choice: Mapping[str, Any]) -> list[str]:
    allowed = choice.get("allowed_tools") or {}
    try:
        names = [tool["function"]["name"] for tool in allowed["tools"]]
    except (KeyError, TypeError):
        names = []
    if not names or None in names or allowed.get("mode") is None:
        wanted = '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}, ...]}'
        raise RequestError(f"tool_choice.allowed_tools must be {wanted}", "tool_choice.allowed_tools")
    return names


def _special_marks(tokenizer: Tokenizer | None) -> dict[str, int]:
    """The tags of calls that are special tokens of the tokenizer."""
    if tokenizer is None:
        return {}
    tokens = {tag: tokenizer.id(tag) for tag in (OPEN, CLOSE)}
    return {tag: token for tag, token in tokens.items() if token is not None and token in tokenizer.special_ids}


@dataclass
class CallReader:
    """Reads one answer as it comes. most: calls after so many are left out. calls: the calls so far, as the API writes
    them.
    """

    parser: ToolParser
    most: int | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    content: str = ""

    def feed(self, text: str, *, final: bool) -> list[dict[str, Any]]:
        """Deltas of the message that `text` completes."""
        events = self.parser.feed(text) if text else []
        if final:
            events = [*events, *self.parser.finish()]
        return [self._delta(event) for event in events if self._wanted(event)]

    def _wanted(self, event: Event) -> bool:
        return isinstance(event, Content) or self.most is None or event.index < self.most

    def _delta(self, event: Event) -> dict[str, Any]:
        match event:
            case Content():
                self.content += event.text
                return {"content": event.text}
            case CallStart():
                call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
                self.calls.append({**call, "function": {"name": event.name, "arguments": ""}})
                function = {"name": event.name, "arguments": ""}
                return {"tool_calls": [{"index": event.index, **call, "function": function}]}
            case CallArguments():
                self.calls[event.index]["function"]["arguments"] += event.text
                return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
