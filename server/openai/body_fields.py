"""Checks of a request's fields by the table of fields (`field_table.py`).

A value of the wrong kind, at any depth, and a known field that asks for something that is not supported are errors that
name the field's path. Unknown fields give a warning, or an error in strict mode. Null is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferir.server.http.http_errors import ApiError
from inferir.server.openai.field_table import SAMPLING
from inferir.server.openai.kinds import MAX_WARNINGS, Record, Walk


def parse(body: dict[str, Any], record: Record, *, strict: bool) -> list[str]:
    """Check `body` and put its values into the form that the server works with, in place.

    Returns a warning for each of the first unknown fields. Raises `ApiError`.
    """
    walk = Walk(strict)
    record.read(body, "", walk)
    more = walk.unknown_fields - MAX_WARNINGS
    return [*walk.warnings, f"and {more} more unknown fields"] if more > 0 else walk.warnings


def stream_options(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """(include_usage, continuous_usage_stats)."""
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not body.get("stream"):
        raise ApiError.invalid("stream_options needs stream: true", "stream_options")
    usage, continuous = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
    if continuous and not usage:
        name = "stream_options.continuous_usage_stats"
        raise ApiError.invalid(f"{name} needs stream_options.include_usage", name)
    return usage, continuous


def sampling_params(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of sampling that `body` gives, as `SamplingParams.parse` takes them."""
    return {name: body[name] for name in SAMPLING if body.get(name) is not None}
