"""The OpenAPI description of request bodies, from the table of fields."""

from __future__ import annotations

from typing import Any

from inferir.server.openai.kinds import Record


def request_body(record: Record) -> dict[str, Any]:
    """`openapi_extra` of a route."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": record.schema()}}}}
