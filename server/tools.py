"""Tools of a chat: what the template and the engine are told of them, and the calls in answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import RequestError
from inferir.runtime.structured.spec import StructuredSpec
from inferir.runtime.structured.tool_parser import CallArguments, CallStart, Content, Event, ToolParser
from inferir.runtime.structured.tools import chosen_tools, forced_spec, parse_tools
from inferir.runtime.tool_style import Style
from inferir.server.errors import ApiError


@dataclass(frozen=True)
class ToolUse:
    """How a request uses tools. forced: the answer is a call and nothing else. spec: its grammar, then."""

    style: Style
    names: frozenset[str]
    forced: bool = False
    named: bool = False
    spec: StructuredSpec | None = None

    def reader(self) -> CallReader:
        return CallReader(ToolParser(self.style, self.names))


def tool_use(body: Mapping[str, Any], style: Style) -> ToolUse | None:
    """What `tools` and `tool_choice` ask for; None if no call may come. Raises `ApiError` naming the field."""
    choice = body.get("tool_choice")
    try:
        tools = parse_tools(body.get("tools"))
        chosen = chosen_tools(tools, choice)
        if not tools or choice == "none":
            return None
        if chosen is None:
            return ToolUse(style, frozenset(t.name for t in tools))
        names = frozenset(t.name for t in chosen)
        return ToolUse("json", names, forced=True, named=choice != "required", spec=forced_spec(chosen))
    except RequestError as error:
        raise ApiError.from_request_error(error) from None


class CallReader:
    """Reads one answer as it comes. calls: the calls so far, as the API writes them."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self.calls: list[dict[str, Any]] = []
        self.content = ""

    def feed(self, text: str, *, final: bool) -> list[dict[str, Any]]:
        """Deltas of the message that `text` completes."""
        events = self._parser.feed(text) if text else []
        if final:
            events = [*events, *self._parser.finish()]
        return [self._delta(event) for event in events]

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
