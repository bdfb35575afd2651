"""Requests in the queue of an engine, made and queued as `LLM` and servers do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.request_maker import RequestOptions
from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.sampling_params import SamplingParams


def add_requests(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    request_id: str | None = None,
    **options: Unpack[RequestOptions],
) -> list[Request]:
    """The requests of a prompt, all of them queued."""
    group = engine.requests.make(prompt, params, request_id, **options)
    engine.queue(group)
    return group


def add_request(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    request_id: str | None = None,
    **options: Unpack[RequestOptions],
) -> Request:
    """The only request of a prompt, queued."""
    (request,) = add_requests(engine, prompt, params, request_id, **options)
    return request
