"""The application: routes, and what errors become."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from inferir import __version__
from inferir.ir.system.error_report import printable
from inferir.server.engine.prometheus_metrics import CONTENT_TYPE
from inferir.server.http.body import has_body, read_json
from inferir.server.http.gate import Gate
from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import ClientGoneError, error_response, json_response, warn
from inferir.server.openai.kinds import read_body
from inferir.server.openai.route import Route
from inferir.server.service import Service

log = logging.getLogger("inferir.server")


def make_app(service: Service, routes: Iterable[Route]) -> Gate:
    """The ASGI application: `routes`, and those that tell how the server is."""
    app = FastAPI(
        title="Inferir", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=None
    )
    _add_status_routes(app, service)
    for route in routes:
        _add_post(app, service, route)
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


def _add_post(app: FastAPI, service: Service, route: Route) -> None:
    path, record = route.path, route.body

    async def post(request: Request) -> Response:
        service.check_ready()
        body = await read_json(request) if route.needs_body or has_body(request) else {}
        try:
            return await answer(request, body)
        except RecursionError:
            raise ApiError(400, "the body is nested too deeply") from None

    async def answer(request: Request, body: dict[str, Any]) -> Response:
        warnings = read_body(body, record, strict=service.options.strict)
        service.check_model(body)
        headers: dict[str, str] = {}
        if warnings:
            warn(headers, "; ".join(warnings), path)
        return await route.answer(service, request, body, headers)

    extra = {
        "requestBody": {"required": route.needs_body, "content": {"application/json": {"schema": record.schema()}}}
    }
    app.add_api_route(path, post, methods=["POST"], response_model=None, openapi_extra=extra, name=path)


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
