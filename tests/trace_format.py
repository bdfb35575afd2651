"""A strict checker of the Trace Event Format, as far as traces of the project use it, and the sums that must hold."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

Event = dict[str, Any]

_FIELDS = {
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur"},
    "C": {"ph", "pid", "name", "ts", "args"},
    "M": {"ph", "pid", "tid", "name", "args"},
    "i": {"ph", "pid", "tid", "name", "cat", "ts", "s"},
}
_ROUNDING = 0.002  # microseconds: begin and duration have three decimals


def checked(raw: bytes) -> dict[str, Any]:
    """The document, whose events are well-formed and whose slices of a thread nest."""
    document: dict[str, Any] = json.loads(raw)
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    named = set()
    for event in document["traceEvents"]:
        needed = _FIELDS[event["ph"]]
        assert needed <= set(event) <= needed | {"args"}, event
        assert isinstance(event["name"], str), event
        assert event["name"]
        assert min(event.get("ts", 0), event.get("dur", 0)) >= 0, event
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
        if event["ph"] == "C":
            assert all(isinstance(v, int | float) for v in event["args"].values()), event
        if event["name"] in ("thread_name", "process_name"):
            named.add((event["name"], event["pid"], event["tid"]))
    for pid, tid in threads:
        assert ("thread_name", pid, tid) in named
        assert any(what == "process_name" and of == pid for what, of, _ in named)
        _check_nesting(threads[pid, tid])
    return document


def _check_nesting(slices: list[Event]) -> None:
    open_ends: list[float] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and open_ends[-1] <= event["ts"] + _ROUNDING:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + _ROUNDING, f"{event} reaches beyond what it lies in"
        open_ends.append(end)


def inside(outer: Event, events: list[Event], category: str) -> list[Event]:
    """The slices of a category within another slice of the same thread."""
    begin, end = outer["ts"], outer["ts"] + outer["dur"]
    return [
        e
        for e in events
        if e["ph"] == "X"
        and e["cat"] == category
        and e["tid"] == outer["tid"]
        and begin - _ROUNDING <= e["ts"]
        and e["ts"] + e["dur"] <= end + _ROUNDING
    ]
