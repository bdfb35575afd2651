"""docs/server.md says which routes and metrics there are."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from serving import Server

from inferir.server.http.gate import OPEN_PATHS
from inferir.server.http.http_errors import _TYPES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text(encoding="utf-8")


def test_routes(server: Server) -> None:
    rows = re.findall(r"^\| `(GET|POST) (\S+)` \|.*\| (yes|no) \|$", TEXT, re.MULTILINE)
    paths = server.get("/openapi.json").json()["paths"]
    assert {(path, method.lower()) for method, path, _ in rows} == {
        (p, m) for p, methods in paths.items() for m in methods if m != "head"
    }
    assert {path for _, path, key in rows if key == "no"} == OPEN_PATHS


def test_metrics(server: Server) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|", TEXT, re.MULTILINE)
    families = text_string_to_metric_families(server.get("/metrics").text)
    assert sorted(rows) == sorted((f.name.removeprefix("inferir_"), f.type) for f in families)


def test_statuses() -> None:
    assert set(re.findall(r"^\| (\d{3}) \|", TEXT, re.MULTILINE)) == {str(s) for s in _TYPES}
