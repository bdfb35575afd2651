"""What happens to every HTTP request before and after its route: request id, CORS, API key, drain, and a log line."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import error_response

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/version", "/metrics", "/stats"})
METHODS = "GET, HEAD, POST, OPTIONS"
DEFAULT_HEADERS = "authorization, content-type, x-request-id"
MAX_ID = 128

_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)

log = logging.getLogger("inferir.server.access")


class Gate:
    """ASGI middleware. With keys, all but `OPEN_PATHS` need `Authorization: Bearer KEY`; a preflight does not."""

    def __init__(self, app: ASGIApp, *, keys: Iterable[str], origins: Iterable[str]) -> None:
        self._app = app
        self._keys = [_digest(k.encode("utf-8", "surrogateescape")) for k in keys]
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close"})
            return
        scope = _origin_form(scope)
        started = time.monotonic()
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        allowed = self._allowed_origin(headers.get("origin"))
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["x-request-id"] = request_id
                out["x-content-type-options"] = "nosniff"
                if allowed is not None:
                    out["access-control-allow-origin"] = allowed
                    out["access-control-expose-headers"] = "x-request-id, x-inferir-warning, retry-after"
                    out.append("vary", "origin")
            await send(message)

        try:
            await self._pass(scope, headers, allowed, receive, send_with_headers)
        finally:
            seconds = time.monotonic() - started
            log.info("%s %.200r %s %.3f s %s", scope["method"], scope["path"], status or "left", seconds, request_id)

    async def _pass(self, scope: Scope, headers: Headers, allowed: str | None, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
            answer = Response(status_code=204, headers=None if allowed is None else _preflight(headers))
        elif scope["method"] == "OPTIONS" and scope["path"] == "*":  # about the server as a whole
            answer = Response(status_code=204, headers={"allow": METHODS})
        elif self._keys and scope["path"] not in OPEN_PATHS and not self._has_key(headers.getlist("authorization")):
            text, how = "a valid API key is needed: Authorization: Bearer KEY", {"www-authenticate": "Bearer"}
            answer = error_response(ApiError(401, text, code="invalid_api_key", headers=how))
        await answer(scope, receive, send)

    def _allowed_origin(self, origin: str | None) -> str | None:
        if origin is None:
            return None
        if "*" in self._origins:
            return "*"
        return origin if origin in self._origins else None

    def _has_key(self, given: list[str]) -> bool:
        """Compares digests in constant time, with every key."""
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(" ")
        if not key.strip():
            return False
        digest = _digest(key.strip().encode("latin-1"))  # a header is bytes, which the server reads as Latin-1
        found = False
        for known in self._keys:
            found |= hmac.compare_digest(digest, known)
        return found and scheme.lower() == "bearer"


def _preflight(headers: Headers) -> dict[str, str]:
    return {
        "access-control-allow-methods": METHODS,
        "access-control-allow-headers": headers.get("access-control-request-headers", DEFAULT_HEADERS),
        "access-control-max-age": "600",
    }


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _request_id(given: str | None) -> str:
    """The client's id if it is short and printable, else a new one."""
    if given and len(given) <= MAX_ID and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _origin_form(scope: Scope) -> Scope:
    """`scope` with the path alone, if its target was a whole address (RFC 9112, 3.2), as of requests to a proxy."""
    if scope["path"].startswith("/"):
        return scope
    raw: bytes = scope["raw_path"]
    found = _ABSOLUTE.match(raw)
    if found is None:
        return scope
    rest = raw[found.end() :]
    if not rest and scope["method"] == "OPTIONS":
        return {**scope, "path": "*", "raw_path": b"*"}
    rest = rest or b"/"
    return {**scope, "path": unquote(rest.decode("ascii")), "raw_path": rest}
