"""Sizes and durations as people write them on a command line."""

from __future__ import annotations

import re

from inferir.ir.errors import InferirError

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_DURATIONS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MEASURE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def size_bytes(text: str, option: str) -> int:
    """Bytes in text such as "512MiB" or "2g"; 0 is a size. Raises `InferirError` naming `option`."""
    found = _MEASURE.fullmatch(text.strip())
    unit = _SIZES.get(found[2].lower().removesuffix("b")) if found else None
    if found is None or unit is None:
        raise InferirError(f'{option}: {text!r} is not a size; give bytes or text like "512MiB" or "2GB"')
    return int(float(found[1]) * unit)


def duration_seconds(text: str, option: str) -> float:
    """Seconds in text such as "90s", "15min", "12h" or "30d". Raises `InferirError` naming `option`."""
    found = _MEASURE.fullmatch(text.strip())
    unit = _DURATIONS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise InferirError(f'{option}: {text!r} is not a duration; give text like "90s", "15min", "12h" or "30d"')
    return float(found[1]) * unit
