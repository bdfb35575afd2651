"""A request's part of a step."""

from __future__ import annotations

from typing import NamedTuple

from inferir.runtime.requests.request import Request


class Scheduled(NamedTuple):  # one per sequence and step: made in half the time of a frozen data class
    """`request` computes its next `tokens` tokens."""

    request: Request
    tokens: int
