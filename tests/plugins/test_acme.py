"""A distribution outside of this system, installed into an environment of its own: it adds parts of most kinds, and
nothing of ours is touched. Compiled with it, listed, inspected, served with it, and served without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from acme_model import write_clipped_model
from plugin_distributions import write_distribution
from plugin_environment import ACME, Environment
from serving import Server

from inferir.ir.plugin_kinds import COMPILE, kinds_of

ORIGIN = "acme-inferir 1.5"
PROMPT = "a tiny model"
SMALL = ("--max-num-batched-tokens", "1", "--max-num-seqs", "1", "--max-model-len", "64", "--buckets", "1")

NUMBERS = """
import sys
import acme.torch_ops
import torch
from inferir import LLM
from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.source.model_source import load_source
model = eager_model(load_source(sys.argv[1], trust_remote_code=True))
for layer in model.model.layers:
    weight = layer.mlp.down_proj.weight
    weight.data = weight.data.bfloat16().float()
ids = list(range(20, 50))
with LLM(sys.argv[2], threads=1, kv_cache_memory="4MiB") as llm:
    torch.testing.assert_close(torch.from_numpy(llm.logits([ids])[0]), model_logits(model, ids), rtol=1e-4, atol=1e-4)

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType
from inferir.testing import check_op
form = [([TensorType((T, 24), DType.F32)], {"limit": 2.0})]
traced = lambda module, x, positions: torch.ops.acme.soft_clip(x, 2.0)
print(check_op("acme.soft_clip", forms=form, traced=traced, dtypes=(DType.F32,), backends=["cpu"], examples=10))
"""
"""The op, the override and the format against the model's own code, whose weights are rounded as the format does; and
the op's decomposition, import rule and kernel against its reference.
"""

GENERATE = """
import sys
from inferir import LLM, SamplingParams
with LLM(sys.argv[1], threads=1, kv_cache_memory="4MiB") as llm:
    print(llm.generate(sys.argv[2], SamplingParams(temperature=0, max_tokens=4))[0].text.encode())
print(sorted(name for name in sys.modules if name.startswith(("acme", "forge"))))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("acme") / "env")
    made.install(ACME)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clipped_model(tmp_path_factory.mktemp("clipped") / "model")


@pytest.fixture(scope="module")
def artifact(environment: Environment, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clipped-art") / "art"
    environment.run("compile", str(model), "-o", str(out), "--trust-remote-code", "--jobs", "1", *SMALL)
    return out


def test_the_listing_has_every_entry(environment: Environment) -> None:
    found = {(p["kind"], p["name"]): (p["origin"], p["state"]) for p in environment.json("plugins")}
    compiling = [
        ("passes", "half-weights"),
        ("ops", "acme"),
        ("formats", "half_panels"),
        ("kernels", "plain-norm"),
        ("tvm_ops", "acme.soft_clip"),
        ("tvm_formats", "half_panels"),
    ]
    serving = [("routes", "count"), ("stats", "note")]
    assert found == {
        **dict.fromkeys(compiling, (ORIGIN, "active")),
        **dict.fromkeys(serving, (ORIGIN, "closed")),
    }


def test_the_artifact_says_who_took_part(environment: Environment, artifact: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = environment.json("inspect", str(artifact), "--html", str(page))
    took = {(p["kind"], p["name"]): p for p in found["plugins"]}
    assert {k: p["detail"] for k, p in took.items()} == {
        ("passes", "half-weights"): "changed the graph",
        (
            "ops",
            "acme",
        ): "imported acme.soft_clip.default, acme.soft_clip in the captured graph, acme.soft_clip in the kernels",
        ("formats", "half_panels"): "stores 1 weight",
        ("kernels", "plain-norm"): "made k6_rms_norm",
        ("tvm_ops", "acme.soft_clip"): "wrote the op",
        ("tvm_formats", "half_panels"): "multiplies with 1 weight",
    }
    assert {(p["distribution"], p["version"], p["serves"]) for p in took.values()} == {("acme-inferir", "1.5", False)}
    made = {k["name"]: k["made_by"] for k in found["kernels"] if k["made_by"]}
    assert made == {"k6_rms_norm": f"plain-norm of {ORIGIN}"}
    for shown in (page.read_text(), environment.run("inspect", str(artifact))):
        assert all(text in shown for text in ("Plug-ins that took part", "half-weights", ORIGIN, "k6_rms_norm (by"))


def test_what_it_adds_computes_what_the_model_does(environment: Environment, artifact: Path, model: Path) -> None:
    said = environment.code(NUMBERS, str(model), str(artifact))
    assert said.splitlines()[-2:] == [
        "acme.soft_clip: its decomposition, its import rule",
        "10 cases; 1 kernels for cpu",
    ]


def test_it_serves_with_a_route_and_a_stat_sink_that_are_named(
    environment: Environment, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = tmp_path / "stats"
    for name, value in environment.variables(ACME_STATS=str(stats)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    options = ("--allow-route", "count", "--stat-sink", "note")
    server = Server(artifact, tmp_path / "log", *options, python=str(environment.python))
    try:
        server.ready()
        answer: httpx.Response = server.post("/acme/count", {"text": PROMPT})
        assert (answer.status_code, answer.json()) == (200, {"count": len(PROMPT), "model": "tiny"})
        assert server.complete().status_code == 200
        server.wait(lambda: stats.exists() and stats.read_text().endswith("}\n"))
        assert "running" in json.loads(stats.read_text().splitlines()[0])
    finally:
        server.close()


def test_it_serves_without_the_distribution_and_beside_broken_ones(
    environment: Environment, artifact: Path, tmp_path: Path
) -> None:
    """What only took part in compiling is not needed, and what cannot be imported does not disturb."""
    write_distribution(tmp_path, "forge", "raise RuntimeError", **{k: {"x": "X"} for k in kinds_of(COMPILE)})
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [sys.executable, "-P", "-c", GENERATE, str(artifact), PROMPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == environment.code(GENERATE, str(artifact), PROMPT)
    assert done.stdout.endswith("\n[]\n")
