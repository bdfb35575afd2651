"""Who else wants to know how the engine is: sinks of other distributions that the server's options name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferir.ir.plugin_registry import PluginRegistry
from inferir.ir.system.error_report import one_line
from inferir.server.engine.engine_client import EngineClient

SECONDS = 1.0

Sink = Callable[[Mapping[str, Any]], object]
"""Takes a snapshot: the fields of `messages.Stats` by name."""

log = logging.getLogger("inferir.server")

SINKS: PluginRegistry[Sink] = PluginRegistry(
    "stats", "stat sink", check=lambda value: None if callable(value) else "it cannot be called"
)


async def feed(client: EngineClient, sinks: dict[str, Sink]) -> None:
    """Give every sink a snapshot each second, beside the event loop. One that fails gets no more."""
    while sinks:
        await asyncio.sleep(SECONDS)
        snapshot = msgspec.structs.asdict(client.stats)
        for name, sink in list(sinks.items()):
            try:
                await asyncio.to_thread(sink, dict(snapshot))
            except Exception as error:
                log.error("the stat sink %s failed and gets no more: %s", name, one_line(f"{error!r}"))
                del sinks[name]
