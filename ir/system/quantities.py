"""Sizes, durations and numbers as people read them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(nbytes: float) -> str:
    """`nbytes` for people, such as 12.3 MiB."""
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in _UNITS:
        nbytes /= 1024
        if nbytes < 1024 or unit == _UNITS[-1]:
            break
    return f"{nbytes:.1f} {unit}"


def seconds(value: float) -> str:
    """A duration for people: 31 ms, 2.41 s, 3 min 20 s."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


def age(value: float) -> str:
    """How long ago, in the largest fitting unit."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= length:
            return f"{value / length:.0f} {unit}"
    return f"{max(value, 0):.0f} s"


def count(number: int, noun: str) -> str:
    """`1 entry`, `2 entries`, `3 buckets`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"
