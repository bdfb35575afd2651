"""Errors as clients see them: an HTTP status and OpenAI's JSON object, which names the field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inferir.ir.errors import RequestError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


@dataclass
class ApiError(Exception):
    """An answer that is not the one that was asked for."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @staticmethod
    def invalid(message: str, param: str | None) -> ApiError:
        return ApiError(400, message, param)

    @staticmethod
    def from_request_error(error: RequestError) -> ApiError:
        return ApiError(400, str(error), error.field)


def too_large(limit: int) -> ApiError:
    """For a body of more than `limit` bytes."""
    return ApiError(413, f"the body is larger than {limit:,} bytes", headers={"connection": "close"})


def engine_died() -> ApiError:
    return ApiError(503, "the engine process died while it served this request; it is being restarted", None, "engine")


def not_ready(phase: str) -> ApiError:
    return ApiError(503, f"the server is not ready: {phase}", None, phase, {"retry-after": "1"})


def draining() -> ApiError:
    return ApiError(503, "the server is shutting down", None, "draining", {"retry-after": "5"})
