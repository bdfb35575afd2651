"""Recording the steps of a server: only where an option opens the routes, with a key, one recording at a time."""

from __future__ import annotations

import os
import signal

import pytest
from serving import Server, Start
from trace_format import checked, inside

KEY = {"authorization": "Bearer k"}


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_without_the_option_there_are_no_routes(server: Server, path: str) -> None:
    assert server.post(path).status_code == 404


def test_steps_between_start_and_stop(start: Start) -> None:
    server = start("--profile", "--api-key", "k").ready()
    server.http.headers.update(KEY)
    for path in ("/start_profile", "/stop_profile"):
        assert server.post(path, headers={"authorization": "Bearer other"}).status_code == 401
    refused = server.post("/stop_profile")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_profiling")
    assert server.complete().status_code == 200  # is not recorded
    begun = server.post("/start_profile")
    assert (begun.status_code, begun.json()) == (200, {"status": "recording", "steps": 500, "seconds": 60})
    again = server.post("/start_profile")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "profiling")
    assert server.complete(max_tokens=6, ignore_eos=True).status_code == 200
    stopped = server.post("/stop_profile")
    assert stopped.status_code == 200
    assert stopped.headers["content-disposition"] == 'attachment; filename="inferir-trace.json"'
    assert "x-inferir-warning" not in stopped.headers
    document = checked(stopped.content)
    assert (document["otherData"]["steps"], document["otherData"]["cut"]) == (6, "")
    events = document["traceEvents"]
    steps = [e for e in events if e.get("cat") == "step"]
    assert [s["args"]["kind"] for s in steps] == ["prefill", *["decode"] * 5]
    for step in steps:
        parts = inside(step, events, "phase")
        assert sum(p["dur"] for p in parts) == pytest.approx(step["dur"], abs=0.02)
        (wait,) = (p for p in parts if p["name"] == "wait")
        kernels = inside(wait, events, "kernel")
        assert len(kernels) > 10
        assert 0 < sum(k["dur"] for k in kernels) <= wait["dur"] + 0.1
    assert server.post("/stop_profile").status_code == 409

    # Limits end a recording by themselves, and its trace says so.
    assert server.post("/start_profile", {"steps": 2, "steppes": 1}).headers["x-inferir-warning"].startswith("unknown")
    assert server.complete(max_tokens=6, ignore_eos=True).status_code == 200
    cut = server.post("/stop_profile")
    assert cut.headers["x-inferir-warning"] == "the recording was cut at its limit of 2 steps; 4 steps followed"
    document = checked(cut.content)
    assert (document["otherData"]["steps"], document["otherData"]["missed_steps"]) == (2, 4)
    (note,) = (e["name"] for e in document["traceEvents"] if e["ph"] == "i")
    assert note == "the recording was cut at its limit of 2 steps; 4 steps followed"
    for body in ({"steps": 0}, {"steps": 501}, {"seconds": 61}):
        assert server.post("/start_profile", body).status_code == 400

    # A recording is lost with its engine, and the next one begins anew.
    assert server.post("/start_profile").status_code == 200
    os.kill(server.engine_pid(), signal.SIGKILL)
    server.wait(lambda: server.get("/ready").status_code == 503)
    server.ready()
    assert server.post("/stop_profile").status_code == 409
    assert server.post("/start_profile").status_code == 200
    assert checked(server.post("/stop_profile").content)["otherData"]["steps"] == 0
