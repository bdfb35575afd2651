"""Check rotary scaling before a model is traced.

A rotary embedding that depends on positions alone traces as it is, whatever its scaling (`default`, `linear`,
`yarn`, `llama3`, …). `dynamic` and `longrope` choose their frequencies from the longest sequence of the whole call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferir.frontend.huggingface import api, text_config
from inferir.ir.errors import UntraceableError

WHOLE_BATCH = ("dynamic", "longrope")


def rope_kinds(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(rope type, parameters) of a config, one per layer type where they differ."""
    parameters = getattr(text_config(config), "rope_parameters", None) or getattr(
        text_config(config), "rope_scaling", None
    )
    if not isinstance(parameters, Mapping):
        return
    nested = [p for p in parameters.values() if isinstance(p, Mapping)]
    for item in nested or [parameters]:
        yield str(item.get("rope_type", item.get("type", "default"))), item


def check_rope(config: Any) -> None:
    """Raise `UntraceableError` naming rope_type and its value for scaling that is unknown or depends on the whole
    batch.
    """
    known = api().rope_kinds
    for kind, parameters in rope_kinds(config):
        if kind not in known:
            raise UntraceableError(f"rope_type {kind!r} is not known; known are {', '.join(sorted(known))}")
        if kind in WHOLE_BATCH:
            raise UntraceableError(
                f"rope_type {kind!r} chooses its frequencies from the longest sequence of a batch, so a sequence's "
                "result would depend on its neighbours; it is not supported yet"
            )
        if kind != "default" and kind != "proportional" and "factor" not in parameters:
            raise UntraceableError(f"rope_type {kind!r} needs a 'factor' in the model's rope parameters")
