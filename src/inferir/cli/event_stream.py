"""Server-sent events from bytes as they come, by the rules of the WHATWG HTML standard (9.2.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ServerEvent:
    """One event. type: its name, "message" if it has none. data: its lines, joined by line feeds."""

    type: str
    data: str


class EventReader:
    """Reads one stream. Comments, identifiers, retry times, unknown fields and events without data give nothing."""

    def __init__(self) -> None:
        self._buffer = b""
        self._begun = False
        self._after_return = False  # whether a line feed that comes next belongs to the last line's end
        self._type = ""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that `data` completes."""
        if self._after_return and data:
            data = data.removeprefix(b"\n")
            self._after_return = False
        self._buffer += data
        if not self._begun:
            if _BOM.startswith(self._buffer):
                return []  # it may yet become a byte order mark
            self._buffer = self._buffer.removeprefix(_BOM)
            self._begun = True
        self._after_return = self._buffer.endswith(b"\r")
        *lines, self._buffer = _LINE_END.split(self._buffer)
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> ServerEvent | None:
        """What has come of an event that the stream's end cut off, or None."""
        self._line(self._buffer)
        return self._dispatch()

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> ServerEvent | None:
        kind, lines = self._type or "message", self._data
        self._type, self._data = "", []
        text = b"\n".join(lines).decode("utf-8", "replace")
        return ServerEvent(kind, text) if text.strip() else None
