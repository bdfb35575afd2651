"""Tool calls of a whole text, for tests that do not care how it arrived."""

from inferir.runtime.structured.tool_parser import CallStart, Content, ToolParser
from inferir.runtime.text.tool_style import Style


def parse_calls(style: Style, names: frozenset[str], text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content, and the calls as (name, arguments), of a whole text."""
    parser = ToolParser(style, names)
    content, calls = "", []
    for event in [*parser.feed(text), *parser.finish()]:
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallStart):
            calls.append((event.name, ""))
        else:
            calls[event.index] = (calls[event.index][0], calls[event.index][1] + event.text)
    return content, calls
