"""What a route is: a path, the fields of its bodies, and who answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferir.server.openai.kinds import Record

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from inferir.server.service import Service

    Answer = Callable[[Service, Request, Mapping[str, Any], dict[str, str]], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """POST `path`. `answer` gets the service, the request, its body as the fields of `body` read it, and headers to
    answer with; it raises `ApiError` for what it cannot answer. needs_body: without a body it is an error, not an empty
    object.
    """

    path: str
    body: Record
    answer: Answer
    needs_body: bool = True
