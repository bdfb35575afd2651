"""What a step brings a request."""

from __future__ import annotations

from typing import NamedTuple

from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.token_logprobs import TokenLogprobs


class Update(NamedTuple):  # one per sequence and step, as `Scheduled`
    """What one step brought a request: `tokens`, the text they let go, and, with the last ones, why it ended.

    finish_reason is "stop" (end-of-sequence, stop token or stop string, named by stop_reason unless it is
    end-of-sequence), "length", "abort" or "error" (the request's `error` then says what went wrong); None means that
    the request goes on. logprobs: one for each of the tokens if the request asked for them, else empty.
    """

    request: Request
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
