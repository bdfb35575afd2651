"""What a request asks the engine for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inferir.runtime.structured import spec_fields as fields
from inferir.server.openai.parameters import structure


def test_schemas_are_checked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check may take some tenths of a second, in which others are answered."""
    threads = []
    check = fields.structured_spec

    def structured_spec(body: Any) -> Any:
        threads.append(threading.current_thread())
        return check(body)

    monkeypatch.setattr(fields, "structured_spec", structured_spec)

    async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    body = {"structured_outputs": {"json": {"type": "null"}}}
    service: Any = SimpleNamespace(in_thread=in_thread)
    found = asyncio.run(structure(service, body))
    assert found is not None
    assert found.kind == "json_schema"
    assert threads
    assert threading.main_thread() not in threads
