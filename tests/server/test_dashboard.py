"""The Grafana dashboard asks for metrics that a server has, and shows all but those that its page leaves out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Server

from inferir.server.engine.prometheus_metrics import Metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "inferir.json").read_text(encoding="utf-8"))
VARIABLES = {"$__rate_interval": "1m", "$__range": "30m", "$model": ".*"}
WORDS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool"})
"""Names in expressions that are neither metrics nor functions."""


def expressions(prefix: str) -> Iterator[str]:
    """Every PromQL expression, its variables replaced; that of the variable `model` as the series it asks for."""
    texts = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    for variable in DASHBOARD["templating"]["list"]:
        if found := re.fullmatch(r"label_values\((.*), *\w+\)", variable.get("definition", "")):
            texts.append(found[1])
    for text in texts:
        for name, value in {"${prefix}": prefix, **VARIABLES}.items():
            text = text.replace(name, value)
        assert "$" not in text, text
        yield text


def metric_names(expression: str) -> set[str]:
    """Names of series in an expression: what remains without strings, matchers, ranges, lists of labels, functions."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    names = re.findall(r"(?<![\w.:])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])", text)
    return set(names) - WORDS


def sample_names(text: str) -> set[str]:
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_names_in_expressions() -> None:
    text = 'histogram_quantile(0.9, sum by (le) (rate(a_bucket{x=~"b(c)"}[5m]))) / on (y) vllm:d_total or e'
    assert metric_names(text) == {"a_bucket", "vllm:d_total", "e"}


def test_every_metric_asked_for_exists(server: Server) -> None:
    there = sample_names(server.get("/metrics").text)
    for expression in expressions("inferir_"):
        names = metric_names(expression)
        assert names, expression
        assert names <= there, f"{sorted(names - there)} of {expression}"


def test_it_works_with_the_names_of_vllm() -> None:
    there = sample_names(Metrics("vllm", "m").text().decode())
    assert {name for e in expressions("vllm:") for name in metric_names(e)} <= there


def test_every_metric_is_shown_or_left_out(server: Server) -> None:
    """docs/server.md says what the dashboard leaves out."""
    shown = {name for e in expressions("inferir_") for name in metric_names(e)}
    families = {
        f.name.removeprefix("inferir_"): {s.name for s in f.samples}
        for f in text_string_to_metric_families(server.get("/metrics").text)
    }
    hidden = {name for name, samples in families.items() if not samples & shown}
    page = (DOCS / "server.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^The dashboard leaves out (.*?)[:.]", page, re.MULTILINE | re.DOTALL)
    assert hidden == set(re.findall(r"`(\w+)`", listed))


def test_prometheus_can_read_every_expression(tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    rules = [{"record": f"r{i}", "expr": text} for i, text in enumerate(expressions("vllm:"))]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML, too
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_cover_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
