"""Rotary scaling: check it before a model is traced, and fix what depends on a whole batch.

A rotary embedding that depends on positions alone traces as it is, whatever its scaling (`default`, `linear`, `yarn`,
`llama3`, …). `dynamic` and `longrope` choose their frequencies from the longest sequence of the call: up to a threshold
they are constant, beyond it every position of a sequence changes with its length. They are traced with the frequencies
below the threshold, and the model is limited to that length.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

from inferir.frontend.huggingface import api, text_config
from inferir.ir.errors import UntraceableError

WHOLE_BATCH = ("dynamic", "longrope")


def rope_kinds(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(rope type, parameters) of a config, one per layer type where they differ."""
    part = text_config(config)
    parameters = getattr(part, "rope_parameters", None) or getattr(part, "rope_scaling", None)
    if not isinstance(parameters, Mapping):
        return
    nested = [p for p in parameters.values() if isinstance(p, Mapping)]
    for item in nested or [parameters]:
        yield str(item.get("rope_type", item.get("type", "default"))), item


def check_rope(config: Any) -> None:
    """Raise `UntraceableError` naming rope_type and its value for a kind of scaling that is unknown or lacks a
    factor.
    """
    known = api().rope_kinds
    for kind, parameters in rope_kinds(config):
        if kind not in known:
            raise UntraceableError(f"rope_type {kind!r} is not known; known are {', '.join(sorted(known))}")
        if kind in ("linear", "dynamic", "yarn", "llama3") and not isinstance(parameters.get("factor"), (int, float)):
            raise UntraceableError(f"rope_type {kind!r} needs a number 'factor' in the model's rope parameters")


def length_limit(config: Any) -> tuple[int, str]:
    """(longest sequence with constant rotary frequencies, the rope type that limits it); (0, "") without such a
    limit.
    """
    part, limits = text_config(config), []
    for kind, parameters in rope_kinds(config):
        if kind == "dynamic":
            limits.append((int(part.max_position_embeddings), kind))
        elif kind == "longrope":
            original = parameters.get("original_max_position_embeddings")
            original = original or getattr(part, "original_max_position_embeddings", None)
            limits.append((int(original or part.max_position_embeddings), kind))
    return min(limits, default=(0, ""))


def hold_frequencies(model: Any) -> None:
    """Make rotary modules of kinds that look at the whole batch keep their initial frequencies.

    Raises `UntraceableError` naming a module whose update cannot be taken off.
    """
    for name, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        kinds = list(kinds.values()) if isinstance(kinds, Mapping) else [kinds]
        held = [str(k) for k in kinds if k in WHOLE_BATCH]
        if not held:
            continue
        forward = type(module).forward
        plain = inspect.unwrap(forward)
        if plain is forward:
            raise UntraceableError(f"module {name!r} has rope_type {held[0]!r} in a form that cannot be traced")
        module.forward = types.MethodType(plain, module)
