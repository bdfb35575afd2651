"""The routes."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from inferir import __version__
from inferir.ir.system.error_report import printable
from inferir.server.engine.prometheus_metrics import CONTENT_TYPE
from inferir.server.http.body import read_json
from inferir.server.http.gate import Gate
from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import ClientGoneError, error_response, json_response, warn
from inferir.server.openai import body_fields as fields
from inferir.server.openai.chat_route import chat
from inferir.server.openai.completions_route import completions
from inferir.server.openai.field_schema import request_body
from inferir.server.openai.field_table import ROUTES
from inferir.server.service import Service

log = logging.getLogger("inferir.server")

Handler = Callable[[Service, Request, Mapping[str, Any], dict[str, str]], Awaitable[Response]]


def make_app(service: Service) -> Gate:
    """The ASGI application."""
    app = FastAPI(
        title="Inferir", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=None
    )
    _add_status_routes(app, service)
    _add_post(app, service, "/v1/completions", completions)
    _add_post(app, service, "/v1/chat/completions", chat)
    _add_post(app, service, "/tokenize", tokenize)
    _add_post(app, service, "/detokenize", detokenize)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(Exception, _internal_error)
    return Gate(app, keys=service.options.api_keys, origins=service.options.origins)


def _add_status_routes(app: FastAPI, service: Service) -> None:
    page = (Path(__file__).parent / "page.html").read_bytes()
    created = int(time.time())

    async def health() -> Response:
        """200 while an engine serves or is being loaded for the first time; 503 after it died."""
        alive = service.client.phase in ("loading", "ready")
        return json_response({"status": "ok" if alive else service.client.phase}, 200 if alive else 503)

    async def ready() -> Response:
        """200 once requests are served, else 503 with what the server waits for."""
        phase = service.phase
        return json_response({"phase": phase}, 200 if phase == "ready" else 503)

    async def version() -> Response:
        return json_response({"version": __version__})

    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    async def stats() -> Response:
        """What the page shows."""
        stats = service.client.stats
        return json_response(
            {
                "phase": service.phase,
                "model": service.names[0],
                "max_model_len": service.max_model_len,
                "chat": service.template is not None and service.template.usable,
                "running": stats.running,
                "waiting": stats.waiting,
                "kv_usage": stats.kv_usage,
                "prefix_queries": stats.prefix_queries,
                "prefix_hits": stats.prefix_hits,
                "generated": service.metrics.generated,
            }
        )

    def entry(name: str) -> dict[str, Any]:
        root = printable(str(service.options.artifact))
        known = {"id": name, "object": "model", "created": created, "owned_by": "inferir", "root": root}
        return {**known, "parent": None, "max_model_len": service.max_model_len}

    async def models() -> Response:
        return json_response({"object": "list", "data": [entry(n) for n in service.names]})

    async def model(name: str) -> Response:
        service.check_model({"model": name})
        return json_response(entry(name))

    async def index() -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": _PAGE_POLICY})

    for path, call in (
        ("/health", health),
        ("/ready", ready),
        ("/version", version),
        ("/metrics", metrics),
        ("/stats", stats),
        ("/v1/models", models),
        ("/v1/models/{name:path}", model),
        ("/", index),
    ):
        app.add_api_route(path, call, methods=["GET", "HEAD"], response_model=None)


_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def _add_post(app: FastAPI, service: Service, path: str, handler: Handler) -> None:
    record = ROUTES[path]

    async def route(request: Request) -> Response:
        service.check_ready()
        body = await read_json(request, service.options.body_limit)
        try:
            return await answer(request, body)
        except RecursionError:
            raise ApiError(400, "the body is nested too deeply") from None

    async def answer(request: Request, body: dict[str, Any]) -> Response:
        warnings = fields.parse(body, record, strict=service.options.strict)
        service.check_model(body)
        headers: dict[str, str] = {}
        if warnings:
            warn(headers, path, "; ".join(warnings))
        return await handler(service, request, body, headers)

    extra = request_body(record)
    app.add_api_route(path, route, methods=["POST"], response_model=None, openapi_extra=extra, name=path)


async def tokenize(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """Token ids of a text or of a conversation."""
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise ApiError.invalid("give either prompt or messages", "prompt")
    tokenizer = service.need_tokenizer("prompt")
    if body.get("messages") is not None:
        ids = await service.chat_tokens(body, headers)
    else:
        _check_plain(body)
        special = body.get("add_special_tokens")
        ids = await service.in_thread(service.encode, body["prompt"], add_special_tokens=special is None or special)
    out = {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids, "token_strs": None}
    if body.get("return_token_strs"):
        out["token_strs"] = [tokenizer.token(i) for i in ids]
    return json_response(out, headers=headers)


def _check_plain(body: Mapping[str, Any]) -> None:
    """Raise `ApiError` for a field that only a conversation has, and that would be ignored beside a text."""
    for name in ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if body.get(name):
            raise ApiError.invalid(f"{name} needs messages", name)


async def detokenize(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """The text of token ids, special tokens included."""
    ids = body.get("tokens")
    if ids is None:
        raise ApiError.invalid("tokens must be a list of token ids", "tokens")
    tokenizer = service.need_tokenizer("tokens")
    bad = next((i for i in ids if not 0 <= i < service.manifest.model.vocab_size), None)
    if bad is not None:
        raise ApiError.invalid(f"token id {bad} is outside the vocabulary", "tokens")
    text = await service.in_thread(tokenizer.decode, ids, skip_special_tokens=False)
    return json_response({"prompt": text}, headers=headers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "there is no such route", 405: "the route does not have this method"}
    text = message.get(error.status_code, str(error.detail))
    return error_response(ApiError(error.status_code, text, headers=dict(error.headers or {})))


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _internal_error(request: Request, error: Exception) -> Response:
    return error_response(ApiError(500, "internal error; the server's log says more"))
