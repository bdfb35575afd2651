"""What config.json must be for a model to be built from it at all, checked before transformers builds anything.

A number out of range would otherwise end in an error deep in a constructor, or in a loop over a billion layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from inferir.ir.errors import FrontendError

_COUNTS = (
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "n_layer",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
)
_LAYERS = ("num_hidden_layers", "n_layer")
_MOST = 2**31 - 1
_MANY_LAYERS = 512
_UNBOUNDED = ("time_step_limit",)  # may be infinite
_DEEPEST = 64


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse sizes that are no positive numbers, and numbers that are not finite. Raises `FrontendError` by key."""
    for key, number in _numbers(config, "", 0):
        if math.isnan(number) or (math.isinf(number) and key.partition("[")[0].rpartition(".")[2] not in _UNBOUNDED):
            raise FrontendError(f"config.json: {key} is {number}, not a finite number")
    for where, part in parts(config):
        for key in _COUNTS:
            count = part.get(key)
            if count is None or isinstance(count, list):  # some models give a list, one entry per layer
                continue
            if type(count) is not int or not 0 < count <= _MOST:
                raise FrontendError(f"config.json: {where}{key} is {count!r}, not a positive number of reasonable size")


def check_layers(config: Mapping[str, Any], tensors: Callable[[], int]) -> None:
    """Refuse more layers than the checkpoint has tensors, which are only counted where there are suspiciously many.

    Raises `FrontendError` naming key and both numbers.
    """
    for where, part in parts(config):
        for key in _LAYERS:
            value = part.get(key)
            if type(value) is int and value > _MANY_LAYERS and value > (found := tensors()):
                raise FrontendError(
                    f"config.json: {where}{key} is {value}, but the checkpoint has {found} tensors; do they "
                    "belong together?"
                )


def parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(prefix of keys, mapping): the config itself, and its description of the language model if that is nested."""
    yield "", config
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        yield "text_config.", nested


def _numbers(value: Any, key: str, depth: int) -> Iterator[tuple[str, float]]:
    if depth > _DEEPEST:
        raise FrontendError(f"config.json: {key[:80]} is nested too deeply")
    if isinstance(value, float):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, f"{key}.{name}" if key else name, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _numbers(item, f"{key}[{number}]", depth + 1)
