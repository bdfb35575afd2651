"""Every field of the generate routes: who checks it, and what becomes of it.

Fields of sampling go 1:1 to `SamplingParams`, which checks them. Fields of the server are checked here. Fields without
effect are accepted. Known fields that ask for something that is not supported are refused by name, unless they hold a
value that switches them off. Unknown fields give a warning, or an error in strict mode.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

from inferir.runtime.sampling import SamplingParams
from inferir.server.errors import ApiError

MAX_N = 128
MAX_MESSAGES = 4096
MAX_TOOLS = 128

Check = Callable[[str, Any], None]


def _fail(name: str, wanted: str, value: Any) -> ApiError:
    shown = json.dumps(value, ensure_ascii=False)
    return ApiError.invalid(f"{name} must be {wanted}, not {shown[:100]}", name)


def boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _fail(name, "true or false", value)


def string(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _fail(name, "a string", value)


def mapping(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _fail(name, "an object", value)


def anything(name: str, value: Any) -> None:
    """For values that are checked where they are used."""


def integer(low: int, high: int | None = None) -> Check:
    limits = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise _fail(name, limits, value)

    return check


def listed(most: int) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, list):
            raise _fail(name, "a list", value)
        if len(value) > most:
            raise ApiError.invalid(f"{name} has {len(value)} entries; at most {most} are allowed", name)

    return check


# What the server reads itself: in other units, by other names, or for each route in its own way.
_OWN = ("max_tokens", "n", "logprobs", "structured")
SAMPLING = tuple(f.name for f in dataclasses.fields(SamplingParams) if f.name not in _OWN)

_COMMON: dict[str, Check] = {
    "model": string,
    "n": integer(1, MAX_N),
    "max_tokens": integer(1),
    "stream": boolean,
    "stream_options": mapping,
    "truncate_prompt_tokens": integer(-1),
    "add_special_tokens": boolean,
    "return_token_ids": boolean,
    "response_format": mapping,
    "structured_outputs": mapping,
    "priority": integer(-(2**31), 2**31 - 1),
    "cache_salt": string,
}
COMPLETIONS: dict[str, Check] = {
    **_COMMON,
    "prompt": anything,
    "max_tokens": integer(0),
    "echo": boolean,
    "logprobs": integer(0, 20),
    "best_of": integer(1),
}
CHAT: dict[str, Check] = {
    **_COMMON,
    "messages": listed(MAX_MESSAGES),
    "max_completion_tokens": integer(1),
    "logprobs": boolean,
    "top_logprobs": integer(0, 20),
    "tools": listed(MAX_TOOLS),
    "tool_choice": anything,
    "parallel_tool_calls": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "chat_template_kwargs": mapping,
}
TOKENIZE: dict[str, Check] = {
    "model": string,
    "prompt": string,
    "messages": listed(MAX_MESSAGES),
    "tools": listed(MAX_TOOLS),
    "add_special_tokens": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "chat_template_kwargs": mapping,
    "return_token_strs": boolean,
}
DETOKENIZE: dict[str, Check] = {"model": string, "tokens": listed(1 << 20)}

# No effect on the answer.
_IGNORED: dict[str, Check] = {
    "user": string,
    "request_id": string,
    "metadata": mapping,
    "service_tier": string,
    "safety_identifier": string,
    "prompt_cache_key": string,
    "spaces_between_special_tokens": boolean,
}

# Known, but only at a value that asks for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "prompt_embeds": (),
    "chat_template": (),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "functions": ([],),
    "function_call": ("none",),
    "web_search_options": (),
    "store": (False,),
    "reasoning_effort": (),
    "verbosity": (),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "kv_transfer_params": (),
    "lora_request": (),
}
_HINTS = {
    "chat_template": "; templates come from the artifact or from --chat-template",
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), "; use structured_outputs"),
    "functions": "; use tools",
    "function_call": "; use tool_choice",
}


def parse(body: Mapping[str, Any], checks: Mapping[str, Check], *, strict: bool, sampling: bool = True) -> list[str]:
    """Check the fields of `body`, where null is absent. Returns a warning per unknown field, or raises `ApiError`."""
    known = {*checks, *(SAMPLING if sampling else ()), *_IGNORED, *_UNSUPPORTED}
    warnings = []
    for name, value in body.items():
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, 1)
            text = f"unknown field {name[:100]!r}" + (f"; did you mean {close[0]}?" if close else "")
            if strict:
                raise ApiError.invalid(text, name[:100])
            warnings.append(text)
        elif value is None:
            continue
        elif name in checks:
            checks[name](name, value)
        elif name in _IGNORED:
            _IGNORED[name](name, value)
        elif name in _UNSUPPORTED and not any(
            value == off and isinstance(value, bool) is isinstance(off, bool) for off in _UNSUPPORTED[name]
        ):
            raise ApiError.invalid(f"{name} is not supported{_HINTS.get(name, '')}", name)
    return warnings


def stream_options(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """(include_usage, continuous_usage_stats)."""
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not body.get("stream"):
        raise ApiError.invalid("stream_options needs stream: true", "stream_options")
    for name, value in options.items():
        if name not in ("include_usage", "continuous_usage_stats", "include_obfuscation"):
            raise ApiError.invalid(f"stream_options has no {name[:100]!r}", "stream_options")
        if value is not None:
            boolean(f"stream_options.{name}", value)
    usage = bool(options.get("include_usage"))
    return usage, usage and bool(options.get("continuous_usage_stats"))


def sampling_params(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of sampling that `body` gives, as `SamplingParams.parse` takes them."""
    return {name: body[name] for name in SAMPLING if body.get(name) is not None}
