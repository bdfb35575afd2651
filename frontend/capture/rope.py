"""Rotary scaling: check it before a model is traced, and make it depend on each sequence alone.

A rotary embedding that depends on positions alone traces as it is, whatever its scaling (`default`, `linear`, `yarn`,
`llama3`, …). `dynamic` and `longrope` choose their frequencies from the longest sequence of the whole call. For them
the captured graph has a third input `lengths` [T]: for every token the length of its own sequence, that is the length
of the prompt, or the token's position + 1 if it lies beyond the prompt. A prompt then gets what Hugging Face's code
gives it alone, however it is chunked and whatever runs beside it; keys and values depend on the prompt's length.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from inferir.frontend.checkpoint.huggingface import api, text_config
from inferir.ir.errors import UntraceableError

PER_SEQUENCE = ("dynamic", "longrope")
_NEED_FACTOR = ("linear", "dynamic", "yarn", "llama3")

_lengths: contextvars.ContextVar[torch.Tensor | None] = contextvars.ContextVar("lengths", default=None)


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
    """Raise `UntraceableError` naming rope_type and its value for a kind that is unknown or lacks its factor."""
    known = set(api().rope_init) | {"default"}
    for kind, parameters in rope_kinds(config):
        if kind not in known:
            raise UntraceableError(f"rope_type {kind!r} is not known; known are {', '.join(sorted(known))}")
        if kind in _NEED_FACTOR and not isinstance(parameters.get("factor"), (int, float)):
            raise UntraceableError(f"rope_type {kind!r} needs a number 'factor' in the model's rope parameters")


def needs_lengths(config: Any) -> bool:
    """Whether rotary frequencies depend on the length of a sequence."""
    return any(kind in PER_SEQUENCE for kind, _ in rope_kinds(config))


def longest_sequence(config: Any) -> int:
    """The length the model was made for, with its rotary scaling; 0 if the config does not say."""
    part = text_config(config)
    stated = int(getattr(part, "max_position_embeddings", 0) or getattr(part, "n_positions", 0) or 0)
    for kind, parameters in rope_kinds(config):
        if kind in _NEED_FACTOR:
            original = parameters.get("original_max_position_embeddings") or stated
            stated = max(stated, int(original * float(parameters["factor"])))
    return stated


@contextlib.contextmanager
def sequence_lengths(lengths: torch.Tensor | None) -> Iterator[None]:
    """Tell rotary modules that `follow_lengths` changed the sequence length of every token, [T] integers."""
    token = _lengths.set(lengths)
    try:
        yield
    finally:
        _lengths.reset(token)


def follow_lengths(model: Any) -> None:
    """Make the rotary modules of `model` that look at the whole call look at `sequence_lengths` instead.

    Raises `UntraceableError` naming a module that has no form without its own update.
    """
    for name, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        held = [k for k in (kinds.values() if isinstance(kinds, Mapping) else [kinds]) if k in PER_SEQUENCE]
        if not held:
            continue
        forward = type(module).forward
        plain = inspect.unwrap(forward)
        if plain is forward:
            raise UntraceableError(f"module {name!r} has rope_type {held[0]!r} in a form that cannot be traced")
        module.forward = functools.partial(_forward, module, plain)


class _WithFrequencies:
    """A module seen with other rotary frequencies."""

    def __init__(self, module: Any, name: str, frequencies: torch.Tensor) -> None:
        self._module = module
        setattr(self, name, frequencies)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _forward(
    module: Any, plain: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
) -> Any:
    options = {} if layer_type is None else {"layer_type": layer_type}
    kind = module.rope_type if layer_type is None else module.rope_type[layer_type]
    lengths = _lengths.get()
    if kind not in PER_SEQUENCE or lengths is None:
        return type(module).forward(module, x, position_ids, **options)
    prefix = "" if layer_type is None else f"{layer_type}_"
    frequencies = _frequencies(module, kind, prefix, options, lengths[:, None])
    return plain(_WithFrequencies(module, f"{prefix}inv_freq", frequencies), x, position_ids, **options)


def _frequencies(
    module: Any, kind: str, prefix: str, options: Mapping[str, str], lengths: torch.Tensor
) -> torch.Tensor:
    """Frequencies [T, dim / 2] of every token by the length of its sequence, lengths [T, 1], by transformers'
    formulas.
    """
    compute = api().rope_init[kind]
    if kind == "dynamic":
        out, _ = compute(module.config, lengths.device, seq_len=lengths, **options)
    else:
        parameters = module.config.rope_parameters
        parameters = parameters[options["layer_type"]] if options else parameters
        original = parameters["original_max_position_embeddings"]
        long, _ = compute(module.config, lengths.device, seq_len=original + 1, **options)
        out = torch.where(lengths > original, long, getattr(module, f"{prefix}original_inv_freq"))
    assert isinstance(out, torch.Tensor)
    return out
