"""How a request wants its tokens chosen, and when it wants to stop."""

from __future__ import annotations

import difflib
import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from inferir.ir.errors import RequestError

MAX_STOPS = 64
MAX_STOP_CHARS = 1024


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, named as in the OpenAI API and vLLM.

    max_tokens: generated tokens at most; None means as many as the context holds. A larger number than that is cut to
    it. temperature: 0 picks the most likely token; above 0, logits are divided by it before the draw. seed: makes
    draws repeatable, whatever else runs beside the request; None draws a fresh one. stop: generation ends before the
    first of these strings appears in the text (or after it, with include_stop_str_in_output). stop_token_ids:
    generation ends with one of these tokens, whose text is left out. ignore_eos: go on after an end-of-sequence token.
    skip_special_tokens: leave special tokens out of the text.

    The remaining fields exist in those APIs but only at the value that switches them off.
    Raises `RequestError` naming the field for a value that is invalid or not supported.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    seed: int | None = None
    stop: str | tuple[str, ...] | list[str] | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    n: int = 1
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[Any, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, low=1)
        _number("temperature", self.temperature, low=0.0, high=100.0)
        _integer("seed", self.seed, low=-(2**63), high=2**64 - 1)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {getattr(self, name)!r}", name)
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        for name, off in _OFF.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not (value in off or (value in ([], (), {}) and None in off)):
                shown = " or ".join(repr(v) for v in off)
                raise RequestError(f"{name}={value!r} is not supported by this version; leave it at {shown}", name)

    @staticmethod
    def parse(values: Mapping[str, Any]) -> SamplingParams:
        """Parameters from request fields, where None means the default (except for max_tokens: as many as fit).

        Raises `RequestError` for an unknown or invalid field.
        """
        for name in values:
            if name not in _NAMES:
                close = difflib.get_close_matches(name, _NAMES, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise RequestError(f"unknown sampling parameter {name!r}{hint}", name)
        return SamplingParams(**{k: v for k, v in values.items() if v is not None or k == "max_tokens"})

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken; a temperature this close to 0 would overflow the logits."""
        return self.temperature < 1e-5

    @property
    def stop_strings(self) -> tuple[str, ...]:
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.stop_token_ids or ())


_NAMES = tuple(f.name for f in fields(SamplingParams))

_OFF: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "min_tokens": (0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": (None,),
    "bad_words": (None,),
    "allowed_token_ids": (None,),
    "logprobs": (None,),
    "prompt_logprobs": (None,),
}


def seed_i32(seed: int | None) -> int:
    """The 32-bit seed that kernels take: `seed` itself if it fits, else a hash of it; a random one for None."""
    if seed is None:
        return secrets.randbits(32) - (1 << 31)
    if -(1 << 31) <= seed < 1 << 31:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "little", signed=True)


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}", name)
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {limits}, not {value}", name)


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, not {value!r}", name)
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{name} must be from {low:g} to {high:g}, not {value}", name)


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(s, str) for s in value):
        raise RequestError(f"stop must be a string or a list of strings, not {value!r}", "stop")
    if len(value) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in value):
        raise RequestError(f"stop takes at most {MAX_STOPS} strings of {MAX_STOP_CHARS} characters", "stop")
    if any(not s for s in value):
        raise RequestError("stop must not contain an empty string", "stop")
    return tuple(value)


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise RequestError(f"stop_token_ids must be a list of token ids, not {value!r}", "stop_token_ids")
    if any(i < 0 for i in value):
        raise RequestError(f"stop_token_ids must not be negative: {min(value)}", "stop_token_ids")
    return tuple(value)
