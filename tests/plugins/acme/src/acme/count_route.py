"""`POST /acme/count`: how many tokens a text has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import json_response
from inferir.server.openai.kinds import Field, Record, Text
from inferir.server.openai.route import Route


async def _count(service: Any, request: Any, body: Mapping[str, Any], headers: dict[str, str]) -> Any:
    if body.get("text") is None:
        raise ApiError.invalid("text is required", "text")
    tokens = await service.in_thread(service.encode, body["text"], add_special_tokens=False)
    return json_response({"count": len(tokens), "model": service.names[0]}, headers=headers)


ROUTE = Route("/acme/count", Record(Field("text", Text(), "obeyed", "the text whose tokens are counted")), _count)
