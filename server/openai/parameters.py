"""From checked fields to what the engine is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from inferir.server.http.http_errors import ApiError
from inferir.server.openai.field_table import SAMPLING

if TYPE_CHECKING:
    from inferir.runtime.structured.spec import StructuredSpec
    from inferir.server.service import Service


MAX_SEQUENCES = 1024  # prompts times n in one request


def sequences(body: Mapping[str, Any]) -> int:
    n: int = body.get("n") or 1
    best_of = body.get("best_of")
    if best_of is not None and best_of != n:
        raise ApiError.invalid("best_of other than n is not supported", "best_of")
    return n


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


def engine_params(
    body: Mapping[str, Any], defaults: Mapping[str, Any], wanted: int | None, otherwise: int | None
) -> dict[str, Any]:
    """Fields for `SamplingParams.parse`: what `body` gives, above the served model's `defaults`.

    wanted: the most tokens that `body` asks for; otherwise: those of a request that does not say, if `defaults` do not.
    """
    given = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    params = {"max_tokens": otherwise, **defaults, **given}
    if wanted is not None:
        params["max_tokens"] = wanted
    n = sequences(body)
    return params if n == 1 else {**params, "n": n}


def check_priority(service: Service, body: Mapping[str, Any]) -> None:
    """Raise `ApiError` for a priority that nothing would look at."""
    policy = service.options.engine.get("scheduling_policy", "fcfs")
    if body.get("priority") and policy != "priority":
        text = (
            "priority has no effect under first come, first served; start the server with --scheduling-policy priority"
        )
        raise ApiError.invalid(text, "priority")


async def structure(
    service: Service,
    body: Mapping[str, Any],
    forced: StructuredSpec | None = None,
    beside_calls: Callable[[StructuredSpec], StructuredSpec] | None = None,
) -> StructuredSpec | None:
    """What the text of an answer must follow. forced: the grammar of a tool call. beside_calls: makes the grammar of a
    text or calls from that of the text. Raises `ApiError`.
    """
    spec = forced
    form = body.get("response_format") or {"type": "text"}
    if form != {"type": "text"} or body.get("structured_outputs"):
        from inferir.runtime.structured.spec_fields import structured_spec

        if forced is not None:
            other = "structured_outputs" if body.get("structured_outputs") else "response_format"
            text = f"tool_choice forces a call, and {other} asks for another text; they exclude each other"
            raise ApiError.invalid(text, "tool_choice")
        spec = await service.in_thread(structured_spec, body)  # it may take some tenths of a second
        if spec is not None and beside_calls is not None:
            spec = await service.in_thread(beside_calls, spec)
    return spec


def truncate(ids: list[int], body: Mapping[str, Any], max_model_len: int) -> list[int]:
    """The last `truncate_prompt_tokens` ids; -1 means as many as leave room for one token."""
    most = body.get("truncate_prompt_tokens")
    if most is None:
        return ids
    if most == 0:
        raise ApiError.invalid("truncate_prompt_tokens must be -1 or at least 1", "truncate_prompt_tokens")
    return ids[-(most if most > 0 else max_model_len - 1) :]
