"""The routes that take a body. Those of other distributions are closed unless the server's options name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inferir.ir.errors import PluginError
from inferir.ir.plugin_registry import PluginRegistry
from inferir.server.openai.route import Route


def _check(value: Any) -> str | None:
    return None if isinstance(value, Route) and value.path.startswith("/") else "it is no Route with a path"


ROUTES: PluginRegistry[Route] = PluginRegistry("routes", "route", check=_check)
ROUTES.add("completions", "inferir.server.openai.completions_route:ROUTE")
ROUTES.add("chat", "inferir.server.openai.chat_route:ROUTE")
ROUTES.add("tokenize", "inferir.server.openai.tokenize_routes:TOKENIZE_ROUTE")
ROUTES.add("detokenize", "inferir.server.openai.tokenize_routes:DETOKENIZE_ROUTE")

BUILT_IN = ("completions", "chat", "tokenize", "detokenize")


def open_routes(allowed: Iterable[str], *, profile: bool = False) -> list[Route]:
    """The built-in routes, with those that record steps if `profile`, and those of `allowed`. Raises `PluginError`
    naming one that is unknown or cannot be used.
    """
    found: dict[str, Route] = {}
    if profile:
        from inferir.server.openai.profile_routes import START_ROUTE, STOP_ROUTE

        found = {route.path: route for route in (START_ROUTE, STOP_ROUTE)}
    for name in dict.fromkeys((*BUILT_IN, *allowed)):
        route = ROUTES.get(name)
        if route.path in found:
            raise PluginError(f"--allow-route {name}: there is a route {route.path} already")
        found[route.path] = route
    return list(found.values())
