"""Tool calls in the shapes of the OpenAI API: deltas of a stream, and whole messages."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from inferir.runtime.structured.tool_parser import CallArguments, CallStart, Content, Event, ToolParser
from inferir.runtime.structured.tools import Style


def call_id() -> str:
    """A fresh id of a call."""
    return f"call_{secrets.token_hex(12)}"


class ToolMessage:
    """The message of one answer whose text may hold tool calls, as it grows.

    names: functions that exist. parallel: whether more than one call is delivered; later ones are dropped otherwise.
    """

    def __init__(
        self, style: Style, names: frozenset[str], *, parallel: bool = True, new_id: Callable[[], str] = call_id
    ) -> None:
        self._parser = ToolParser(style, names)
        self._parallel = parallel
        self._new_id = new_id
        self._content = ""
        self._calls: list[dict[str, Any]] = []

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Deltas for `text`: content, a call's id and name, pieces of its arguments."""
        return self._deltas(self._parser.feed(text))

    def finish(self) -> list[dict[str, Any]]:
        """Deltas for what was held back, once the text has ended."""
        return self._deltas(self._parser.finish())

    @property
    def called(self) -> bool:
        """Whether there is a call; `finish_reason` is then "tool_calls" where it would be "stop"."""
        return bool(self._calls)

    def message(self) -> dict[str, Any]:
        """The whole message so far; its content is null if there are only calls."""
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self._calls:
            message |= {"content": self._content or None, "tool_calls": self._calls}
        return message

    def _deltas(self, events: list[Event]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, Content):
                self._content += event.text
                deltas.append({"content": event.text})
            elif self._parallel or event.index == 0:
                deltas.append({"tool_calls": [self._delta(event)]})
        return deltas

    def _delta(self, event: CallStart | CallArguments) -> dict[str, Any]:
        if isinstance(event, CallStart):
            function = {"name": event.name, "arguments": ""}
            call = {"id": self._new_id(), "type": "function", "function": function}
            self._calls.append(call)
            return {"index": event.index, **call, "function": dict(function)}
        self._calls[event.index]["function"]["arguments"] += event.text
        return {"index": event.index, "function": {"arguments": event.text}}
