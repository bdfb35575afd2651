"""How models write tool calls.

"hermes": `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as ChatML models such as Hermes and Qwen do;
several calls follow each other. "json": the text is one such object, or a list of them; `parameters` is read for
`arguments` too.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

Style = Literal["hermes", "json"]
STYLES: tuple[str, ...] = get_args(Style)

# Marks of ways to write calls that no parser here reads.
_FOREIGN = ("[TOOL_CALLS]", "<function=", "<tool_calls>", "<|tool_call", "<|START_ACTION|>", "functools[", "tool▁call")


def style(name: str | None) -> Style | None:
    """The style of that name; None if there is none, as in an artifact of another version."""
    return cast("Style", name) if name in STYLES else None


def detect_style(template: str) -> Style | None:
    """The style in which a chat template has its model write calls; None if it does not, or if no parser reads it."""
    if "tools" not in template or any(mark in template for mark in _FOREIGN):
        return None
    if "<tool_call>" in template:
        return "hermes"
    named = '"name"' in template and ('"parameters"' in template or '"arguments"' in template)
    return "json" if named else None
