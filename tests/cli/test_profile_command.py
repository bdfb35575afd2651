"""`inferir profile`: its tables, its JSON, and what it refuses before it measures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_format import checked

from inferir.ir.contract.artifact import read_manifest
from inferir.profile import machine_limits

SMALL = ("--prompt-tokens", 12, "--steps", 2, "--repeats", 1, "--threads", 1, "--kv-cache-memory", "4MiB")


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "LEAST", 1 << 20)
    monkeypatch.setattr(machine_limits, "MOST", 1 << 20)


def test_tables_a_trace_and_a_page(cli: Callable[..., Any], tiny_artifact: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "trace.json", tmp_path / "page.html"
    result = cli("profile", tiny_artifact, "-o", out, "--html", page, "--top", 3, *SMALL)
    assert (result.status, result.err) == (0, "")
    words = " ".join(result.out.split())
    assert "prefill steps: 1 step of 12.0 tokens" in words
    assert "decode steps: 2 steps of 1.0 tokens" in words
    assert "kernels more" in words
    assert f"{out}: 3 steps; open it in https://ui.perfetto.dev" in words
    assert checked(out.read_bytes())["otherData"]["steps"] == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "trace.json"]
    html = page.read_text(encoding="utf-8")
    ET.fromstring(html.removeprefix("<!DOCTYPE html>"))
    assert all(kernel.name in html for kernel in read_manifest(tiny_artifact).buckets[0].kernels)
    assert html.count("<circle ") >= 6
    assert not re.search(r"(?:src|href)=", html)


def test_json(cli: Callable[..., Any], tiny_artifact: Path) -> None:
    found = cli("profile", tiny_artifact, "--json", *SMALL).json
    assert [k["kind"] for k in found["kinds"]] == ["prefill", "decode"]
    assert found["shapes"] == {"prompt_tokens": 12, "batch": 1, "steps": 2, "temperature": 0.0}
    assert found["trace"] is None
    for kind in found["kinds"]:
        parts = sum(kind["host_seconds"].values())
        assert 0 < parts < kind["seconds"]
        assert {k["bound_by"] for k in kind["kernels"]} <= {"memory", "cache", "compute", None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", 9], "--batch is 9; the engine runs at most 8 sequences at once"),
        (["--prompt-tokens", 126], "--prompt-tokens and --steps make sequences of 129 tokens; the engine holds 128"),
        (["--html", "no-such-folder/page.html"], "--html: no-such-folder is not a folder"),
        (["-o", "no-such-folder/trace.json"], "--output: no-such-folder is not a folder"),
    ],
)
def test_refusals(fails: Callable[..., str], tiny_artifact: Path, options: list[Any], message: str) -> None:
    assert fails("profile", tiny_artifact, *SMALL, *options) == f"inferir: error: {message}"


def test_an_artifact_without_its_graph(fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert str(missing) in fails("profile", missing, *SMALL)
