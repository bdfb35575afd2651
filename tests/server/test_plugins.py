"""Plug-ins of a server: closed unless its options name them, and nothing else of other distributions is loaded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from plugin_distributions import write_distribution
from serving import COMMAND, Start

from inferir.ir.plugin_kinds import COMPILE, kinds_of

SERVING = """
from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import json_response
from inferir.server.openai.kinds import Field, Integer, Record
from inferir.server.openai.route import Route

async def twice(service, request, body, headers):
    if body.get("x") is None:
        raise ApiError.invalid("x is required", "x")
    return json_response({"y": 2 * body["x"], "model": service.names[0]}, headers=headers)

ROUTE = Route("/twice", Record(Field("x", Integer(0), "obeyed", "a number")), twice)
TAKEN = Route("/tokenize", ROUTE.body, twice)
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of servers, with the distributions `acme`, for serving, and `forge`, for compiling."""
    sinks = f"""
import json
def note(stats):
    with open({str(tmp_path / "stats")!r}, "a") as file:
        file.write(json.dumps(stats) + "\\n")
def broken(stats):
    raise ValueError("no disk")
"""
    write_distribution(
        tmp_path,
        "acme",
        SERVING + sinks,
        routes={"twice": "ROUTE", "taken": "TAKEN", "wrong": "twice"},
        stats={"note": "note", "broken": "broken"},
    )
    mark = f"open({str(tmp_path / 'compiling')!r}, 'w').close()\nraise RuntimeError\n"
    only = [kind for kind in kinds_of(COMPILE) if kind != "kv"]
    write_distribution(tmp_path, "forge", mark, **{kind: {"thing": "THING"} for kind in only})
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path


def test_a_route_that_is_named_serves_and_others_are_not_there(start: Start, plugins: Path) -> None:
    server = start("--allow-route", "twice", "--stat-sink", "note", "--stat-sink", "broken", "--api-key", "k").ready()
    key = {"authorization": "Bearer k"}
    answer = server.post("/twice", {"x": 4}, headers=key)
    assert (answer.status_code, answer.json()) == (200, {"y": 8, "model": "tiny"})
    assert server.post("/twice", {"x": 4}).status_code == 401
    wrong = server.post("/twice", {"x": -1}, headers=key)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x")
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, headers=key).status_code == 200
    stats = plugins / "stats"
    server.wait(lambda: stats.exists() and stats.read_text().endswith("}\n"))
    assert json.loads(stats.read_text().splitlines()[0])["running"] == 0
    server.wait(lambda: any("stat sink broken failed" in line and "no disk" in line for line in server.lines()))
    assert not (plugins / "compiling").exists()


def test_a_route_that_is_not_named_is_closed(start: Start, plugins: Path) -> None:
    server = start().ready()
    assert server.post("/twice", {"x": 4}).status_code == 404
    assert server.complete().status_code == 200
    assert not (plugins / "compiling").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--allow-route", "none"), "unknown route 'none'; known: completions, chat"),
        (("--allow-route", "wrong"), "route 'wrong' of acme 1.5 is not usable: it is no Route"),
        (("--allow-route", "taken"), "--allow-route taken: there is a route /tokenize already"),
        (("--stat-sink", "none"), "unknown stat sink 'none'; known: broken, note"),
    ],
)
@pytest.mark.usefixtures("plugins")
def test_what_cannot_be_used_is_refused_before_anything_starts(
    tiny_artifact: Path, options: tuple[str, ...], reason: str
) -> None:
    command = [*COMMAND, str(tiny_artifact), "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
