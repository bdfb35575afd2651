"""POST /start_profile and /stop_profile, as vLLM names them; only with `--profile`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferir.ir.system.quantities import count
from inferir.runtime.recording.chrome_trace import trace_document, trace_events
from inferir.runtime.recording.recorded_steps import Recording
from inferir.server.engine.messages import StartProfile
from inferir.server.http.responses import json_response, warn
from inferir.server.openai.kinds import OBEYED, Field, Integer, Record
from inferir.server.openai.route import Route
from inferir.server.service import Service

MOST_STEPS, MOST_SECONDS, MOST_BYTES = 500, 60, 2 << 20
"""What a recording may grow to: 2 MiB hold 260,000 operations, which are some 70 MB as JSON."""


async def start(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """Begin to record the engine's steps."""
    limits = StartProfile(body.get("steps") or MOST_STEPS, body.get("seconds") or MOST_SECONDS, MOST_BYTES)
    await service.client.profiling.start(limits)
    return json_response({"status": "recording", "steps": limits.steps, "seconds": limits.seconds}, headers=headers)


async def stop(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """End the recording; the answer is its trace."""
    recording = await service.client.profiling.stop()
    if recording.cut:
        warn(headers, f"{recording.cut}; {count(recording.missed, 'step')} followed", "/stop_profile")
    trace = await service.in_thread(_trace, service, recording)
    headers["content-disposition"] = 'attachment; filename="inferir-trace.json"'
    return Response(trace, 200, headers, "application/json")


def _trace(service: Service, recording: Recording) -> bytes:
    return trace_document(service.manifest, recording, trace_events(service.manifest, recording))


START_ROUTE = Route(
    "/start_profile",
    Record(
        Field("steps", Integer(1, MOST_STEPS), OBEYED, "record so many steps at most"),
        Field("seconds", Integer(1, MOST_SECONDS), OBEYED, "record for so long at most"),
    ),
    start,
    needs_body=False,
)
STOP_ROUTE = Route("/stop_profile", Record(), stop, needs_body=False)
