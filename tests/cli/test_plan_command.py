"""`inferir plan`: the memory of an artifact, before there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferir.api.llm import LLM
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.contract.manifest import Manifest

LIMITS = ("--max-num-batched-tokens", "64", "--max-num-seqs", "8", "--threads", "2")


@pytest.fixture
def manifest(tiny_artifact: Path) -> Manifest:
    return read_manifest(tiny_artifact)


@pytest.fixture
def planned(cli: Callable[..., Any], tiny_model: Path, tiny_artifact: Path) -> dict[str, Any]:
    """The plan of what `tiny_artifact` was compiled with, for 2 MiB."""
    plan: dict[str, Any] = cli(
        "plan", tiny_model, *LIMITS, "--buckets", "1,2-8,9-64", "--memory", "2MiB", "--json"
    ).json
    return plan


def test_the_plan_is_what_compiling_gives(planned: dict[str, Any], manifest: Manifest) -> None:
    memory = manifest.memory
    assert planned["arena_bytes"] == memory.arena_bytes
    assert planned["scratch_bytes_per_thread"] == memory.scratch_bytes
    assert planned["kv_bytes_per_block"] == memory.kv_block_bytes
    tensors = manifest.weights.values()
    headers = sum(min(t.offset for t in tensors if t.file == file) for file in {t.file for t in tensors})
    assert planned["weight_bytes"] + headers == memory.weight_bytes
    assert planned["parameters"] == manifest.model.parameters
    assert planned["checkpoint_bytes"] < planned["weight_bytes"]


def test_step_inputs_and_outputs_are_what_the_engine_allocates(planned: dict[str, Any], tiny_artifact: Path) -> None:
    with LLM(tiny_artifact, threads=1) as llm:
        memory = llm.engine.executor._memory  # type: ignore[attr-defined]
        arrays = [*memory.inputs.values(), *memory.outputs.values()]
    assert planned["io_bytes"] == sum(a.nbytes for a in arrays)


def test_what_fits(planned: dict[str, Any]) -> None:
    fit = planned["fit"]
    free = (2 << 20) - planned["fixed_bytes"]
    assert fit["blocks"] == free // planned["kv_bytes_per_block"]
    assert fit["tokens"] == (fit["blocks"] - 1) * 32
    assert fit["sequences_of_max_model_len"] == fit["tokens"] // 128
    assert planned["fixed_bytes"] == sum(
        (
            planned["weight_bytes"],
            planned["arena_bytes"],
            planned["io_bytes"],
            planned["threads"] * planned["scratch_bytes_per_thread"],
        )
    )


def test_table(cli: Callable[..., Any], tiny_model: Path, planned: dict[str, Any]) -> None:
    result = cli("plan", tiny_model, *LIMITS, "--memory", "2MiB")
    words = " ".join(result.out.split())
    assert "119,744 parameters as f32" in words
    assert "512 B per token" in words
    assert f"2.0 MiB (as asked) hold {planned['fit']['tokens']:,} tokens of KV cache" in words
    assert "(free now) hold" in " ".join(cli("plan", tiny_model, *LIMITS).out.split())


def test_too_little_memory_is_one_line(fails: Callable[..., str], tiny_model: Path) -> None:
    assert "1000 bytes are too little: the model needs at least" in fails(
        "plan", tiny_model, *LIMITS, "--memory", "1kB"
    )
    assert "--memory: 'some' is not a size" in fails("plan", tiny_model, *LIMITS, "--memory", "some")


def test_nothing_is_built(
    cli: Callable[..., Any], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERIR_CACHE", str(tmp_path))
    assert cli("plan", tiny_model, *LIMITS, "--memory", "1GiB").status == 0
    assert {e.kind for e in CompileCache(tmp_path).ls()} == {"graph", "tokenizer"}
