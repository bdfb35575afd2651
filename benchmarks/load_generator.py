"""The load that all servers get: `vllm bench serve` in its own interpreter, or `inferir bench serve`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.engine_process import EngineProcess
from benchmarks.peers import Peer
from benchmarks.server_process import MODEL

METRICS = {"throughput": "output tokens/s", "ttft": "mean TTFT, ms", "tpot": "mean TPOT, ms"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """Random prompts of `prefix` tokens that all share and `input` of their own; every answer has `output` tokens."""

    concurrency: int
    prompts: int
    input: int = 128
    output: int = 128
    prefix: int = 0


class Client(Protocol):
    """`ask` sends a workload as `vllm_load` describes it, and returns the metrics and the number of failures."""

    version: str

    def ask(self, question: dict[str, Any]) -> dict[str, Any]: ...


class InferirClient:
    """`inferir bench serve`, a process per load, with token ids below `vocabulary` as prompts."""

    version = "inferir bench serve"

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        given = {
            "url": question["url"],
            "model": question["model"],
            "num-prompts": question["prompts"],
            "input-len": question["input"],
            "output-len": question["output"],
            "prefix-len": question["prefix"],
            "max-concurrency": question["concurrency"],
            "vocab-size": self.vocabulary,
            "seed": question["seed"],
        }
        command = [sys.executable, "-P", "-c", "from inferir.cli.main import main; main()", "bench", "serve", "--json"]
        command += ["--ignore-eos", *(text for k, v in given.items() for text in (f"--{k}", str(v)))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            found = json.loads(done.stdout)
        except json.JSONDecodeError:
            print(done.stderr, file=sys.stderr)
            return {"throughput": 0.0, "ttft": None, "tpot": None, "failed": question["prompts"]}
        means = {name: (found[f"{name}_ms"] or {}).get("mean") for name in ("ttft", "tpot")}
        return {"throughput": found["output_throughput"], **means, "failed": found["failed"]}


@contextlib.contextmanager
def client(kind: str, peers: Sequence[Peer], vocabulary: int, folder: Path) -> Iterator[Client]:
    """The load generator of a kind: "vllm", "inferir", or "auto": vLLM's if there is a vLLM."""
    vllm = next((p for p in peers if p.kind == "vllm"), None)
    if kind == "inferir" or (kind == "auto" and vllm is None):
        yield InferirClient(vocabulary)
        return
    if vllm is None:
        raise SystemExit("--client vllm: no engine of the kind vllm is configured")
    folder.mkdir(parents=True, exist_ok=True)
    generator = Peer(name="load generator", kind="vllm_load", model=vllm.model, python=vllm.python)
    process = EngineProcess(generator, {}, folder / "load-generator.log")
    try:
        yield process
    finally:
        process.close()


def question(load: Load, url: str, seed: int) -> dict[str, Any]:
    return {**asdict(load), "url": url, "model": MODEL, "seed": seed}
