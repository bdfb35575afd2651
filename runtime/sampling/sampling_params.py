"""How a request wants its tokens chosen, and when it wants to stop."""

from __future__ import annotations

import difflib
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import RequestError
from inferir.runtime.text.request_values import check_text, integral, integrals

if TYPE_CHECKING:
    from inferir.runtime.structured.spec import StructuredSpec

MAX_ANSWERS = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_LISTED = 1000
"""Most entries of logit_bias, bad_words (each of which may ban two ids) and stop_token_ids; together they must fit
`ir.contract.symbols.EDITS_PER_ROW`."""
MAX_LOGPROBS = 20
INT_LIMIT = 2**63 - 1
"""Largest integer that a request may hold where nothing smaller is said; it must pass between processes."""
BIAS_LIMIT = 100.0
LEAST_TOP_P = 2.0**-126
"""What a smaller top_p is taken as, 0 too: the smallest number above 0 that kernels tell from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Parameters of one request, named as in the OpenAI API and vLLM.

    max_tokens: generated tokens at most; None means as many as the context holds. A larger number than that is cut to
    it. n: independent answers. seed: makes draws repeatable, whatever else runs beside the request; None draws a fresh
    one.

    temperature: 0 picks the most likely token; above 0, logits are divided by it before the draw. min_p: only tokens at
    least this share as likely as the most likely one. top_k: only the k most likely; 0 and -1 are no limit, as is
    anything beyond the vocabulary. top_p: only the most likely that make up this share; 0 is the smallest number above
    it. They apply in this order, each to what the one before left; tokens exactly as likely as the last one kept stay
    too.

    allowed_token_ids: only these. logit_bias: numbers added to logits by token id (strings of digits are ids too),
    from -100 to 100. bad_words: never complete these texts, as tokens encode them at the start of a text or after
    a space. repetition_penalty: logits of tokens in prompt or output are divided by it if positive, else multiplied.
    presence_penalty, frequency_penalty: subtracted once, and once per occurrence, for tokens of the output. All four
    act before the temperature, in the order of this paragraph.

    stop: generation ends before the first of these strings appears in the text (or after it, with
    include_stop_str_in_output). stop_token_ids: generation ends with one of these tokens, whose text is left out.
    min_tokens: generated tokens before which none of these, nor an end-of-sequence token, ends it. ignore_eos: go on
    after an end-of-sequence token. skip_special_tokens: leave special tokens out of the text,
    but for kept_special_ids: marks of a structure that somebody reads from it.

    structured: what the text must look like, as an object with one of the keys `json` (a schema, as object or JSON
    text), `json_object` (true), `regex`, `choice` (a list of strings) and `grammar` (GBNF text), or a `StructuredSpec`.

    logprobs, prompt_logprobs: also give log-probabilities of this many most likely tokens, before all of the above.

    Integers may be given as numbers such as 5.0. Raises `RequestError` naming the field for a value that is invalid.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    seed: int | None = None
    stop: str | tuple[str, ...] | list[str] | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    kept_special_ids: tuple[int, ...] | list[int] | None = None
    n: int = 1
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[Any, float] | None = None
    bad_words: tuple[str, ...] | list[str] | None = None
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured: StructuredSpec | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, low, high in INTEGERS:
            value = getattr(self, name)
            if value is None and name not in _OPTIONAL:
                raise RequestError(f"{name} must be an integer, not None", name)
            if value is not None:
                object.__setattr__(self, name, _integer(name, value, low, high))
        for name, least, most in NUMBERS:
            _number(name, getattr(self, name), least, most)
        if self.top_p < LEAST_TOP_P:
            object.__setattr__(self, "top_p", LEAST_TOP_P)
        if self.repetition_penalty < LEAST_TOP_P:  # in kernels it would be 0
            raise RequestError("repetition_penalty must be above 0", "repetition_penalty")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}", "min_tokens")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {getattr(self, name)!r}", name)
        object.__setattr__(self, "stop", _texts("stop", self.stop, MAX_STOPS))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids, MAX_LISTED))
        object.__setattr__(self, "kept_special_ids", _ids("kept_special_ids", self.kept_special_ids, MAX_LISTED))
        object.__setattr__(self, "bad_words", _texts("bad_words", self.bad_words, MAX_LISTED))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = _ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise RequestError("allowed_token_ids is empty, which leaves no token to draw", "allowed_token_ids")
            object.__setattr__(self, "allowed_token_ids", allowed)
        if self.structured is not None:
            object.__setattr__(self, "structured", _spec(self.structured))

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

    def fields(self) -> dict[str, Any]:
        """What differs from the defaults, but for `structured`, in types that pass between processes; see `checked`."""
        found = {name: getattr(self, name) for name in _NAMES if getattr(self, name) != getattr(_DEFAULTS, name)}
        found.pop("structured", None)
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in found.items()}

    @staticmethod
    def checked(fields: Mapping[str, Any]) -> SamplingParams:
        """The parameters whose `fields` these are, as another process checked them; lists become tuples."""
        made = object.__new__(SamplingParams)
        for name in _NAMES:
            value = fields.get(name, getattr(_DEFAULTS, name))
            object.__setattr__(made, name, tuple(value) if isinstance(value, list) else value)
        return made

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken; a temperature this close to 0 would overflow the logits."""
        return self.temperature < 1e-5

    @property
    def spec(self) -> StructuredSpec | None:
        """What the text must look like."""
        assert not isinstance(self.structured, Mapping)
        return self.structured

    @property
    def stop_strings(self) -> tuple[str, ...]:
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def bias(self) -> Mapping[int, float]:
        """logit_bias with integer ids."""
        assert self.logit_bias is not None
        return self.logit_bias

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.stop_token_ids or ())

    @property
    def kept_ids(self) -> frozenset[int]:
        return frozenset(self.kept_special_ids or ())


_NAMES = tuple(f.name for f in fields(SamplingParams))

_OPTIONAL = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
INTEGERS: tuple[tuple[str, int, int | None], ...] = (
    ("max_tokens", 1, None),
    ("seed", -(2**63), 2**64 - 1),
    ("n", 1, MAX_ANSWERS),
    ("top_k", -1, None),
    ("min_tokens", 0, None),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)
"""Fields that are integers, with the least and the largest (None: as large as an integer may be)."""
NUMBERS = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, 100.0),
)
"""Fields that are numbers, with the least and the largest."""


def seed_i32(seed: int | None) -> int:
    """The 32-bit seed that kernels take: `seed` itself if it fits, else a hash of it; a random one for None."""
    if seed is None:
        return secrets.randbits(32) - (1 << 31)
    if -(1 << 31) <= seed < 1 << 31:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "little", signed=True)


def _integer(name: str, value: object, low: int, high: int | None = None) -> int:
    number = integral(value)
    if number is None:
        raise RequestError(f"{name} must be an integer, not {value!r}", name)
    if number < low or number > (INT_LIMIT if high is None else high):
        limits = f"at least {low}" if high is None and number < low else f"from {low} to {high or INT_LIMIT}"
        raise RequestError(f"{name} must be {limits}, not {value}", name)
    return number


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, not {value!r}", name)
    if not low <= value <= high:  # neither NaN nor an integer that is too large for a float
        raise RequestError(f"{name} must be from {low:g} to {high:g}, not {value}", name)


def _texts(name: str, value: object, most: int) -> tuple[str, ...]:
    """A list of texts; as stop, a single one too."""
    if value is None:
        return ()
    one = name == "stop" and isinstance(value, str)
    texts = [value] if one else value
    if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
        wanted = "a string or a list of strings" if name == "stop" else "a list of strings"
        raise RequestError(f"{name} must be {wanted}, not {value!r}", name)
    if len(texts) > most or any(len(t) > MAX_STOP_CHARS for t in texts):
        raise RequestError(f"{name} takes at most {most} strings of {MAX_STOP_CHARS} characters", name)
    if not all(texts):
        raise RequestError(f"{name} must not contain an empty string", name)
    check_text("".join(texts), name)
    return tuple(texts)


def _ids(name: str, value: object, most: int | None = None) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = integrals(value) if isinstance(value, list | tuple) else None
    if ids is None:
        raise RequestError(f"{name} must be a list of token ids, not {value!r}", name)
    if any(i < 0 for i in ids):
        raise RequestError(f"{name} must not be negative: {min(ids)}", name)
    if any(i > INT_LIMIT for i in ids):
        raise RequestError(f"{name}: {max(ids)} is no token id", name)
    if most is not None and len(ids) > most:
        raise RequestError(f"{name} takes at most {most} ids, not {len(ids)}", name)
    return tuple(ids)


def _spec(value: object) -> StructuredSpec | None:
    from inferir.runtime.structured.spec import StructuredSpec
    from inferir.runtime.structured.spec_fields import one_of

    return value if isinstance(value, StructuredSpec) else one_of(value, "structured")


def _bias(value: object) -> Mapping[int, float]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, not {value!r}", "logit_bias")
    if len(value) > MAX_LISTED:
        raise RequestError(f"logit_bias takes at most {MAX_LISTED} ids, not {len(value)}", "logit_bias")
    out: dict[int, float] = {}
    for key, number in value.items():
        token = (
            int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12 else integral(key)
        )
        if token is None or token < 0:
            raise RequestError(f"logit_bias: {key!r} is not a token id", "logit_bias")
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= BIAS_LIMIT:
            wanted = f"a number from -{BIAS_LIMIT:g} to {BIAS_LIMIT:g}"
            raise RequestError(f"logit_bias must be {wanted}, not {number!r}, for token {token}", "logit_bias")
        out[token] = float(number)
    return MappingProxyType(out)


_DEFAULTS = SamplingParams()
