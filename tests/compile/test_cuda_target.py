"""A CUDA target: the Triton backend says what it cannot build yet, and builds what it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferir.codegen.backend import Context
from inferir.codegen.backends import backend_for
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import build_buckets, distinct, lower_bucket, refusal
from inferir.compile.compile_types import CompileOptions, DebugOptions
from inferir.compile.compiler import capture, contexts_of, lower, resolve
from inferir.frontend.source.model_source import load_source
from inferir.ir.contract.gpu_kernel import GpuLibrary
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Node

SMALL = ("--max-model-len", "32", "--max-num-seqs", "2", "--max-num-batched-tokens", "4", "--block-size", "16")
TARGET = Target.named("cuda:sm_90")


@pytest.mark.parametrize("command", ["compile", "plan"])
def test_regions_without_a_kernel_are_listed(
    cli: Callable[..., Any], tiny_model: Path, tmp_path: Path, command: str
) -> None:
    place = ("-o", tmp_path / "art") if command == "compile" else ()
    result = cli(command, tiny_model, *place, *SMALL, "--target", "cuda:sm_90")
    assert result.status == 1
    assert not any(tmp_path.iterdir())
    summary, *regions = result.err.strip().splitlines()
    assert summary.startswith("inferir: error: sm_90: the triton backend has kernels for ")
    assert summary.endswith(" distinct regions of this model, and none yet for the others")
    built, _, every = summary.partition(" kernels for ")[2].split()[:3]
    assert int(built) > 2
    assert len(regions) == int(every) - int(built)
    assert len(set(regions)) == len(regions)
    reasons = {line.partition(": ")[2].partition(";")[0] for line in regions}
    assert reasons >= {f"the Triton backend has no {a} kernels, only rowwise" for a in ("matmul", "attention")}
    assert any("layers.0.self_attn" in line for line in regions)


def test_there_is_nothing_to_tune(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    result = cli("tune", tiny_model, "-o", tmp_path / "records.json", *SMALL, "--target", "cuda:sm_90")
    assert (result.status, result.err.strip()) == (1, "inferir: error: the triton backend has nothing to tune")
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def rowwise(tiny_model: Path) -> tuple[list[Node], Context]:
    """The regions of a model that have kernels, and what they are made for."""
    options = CompileOptions(max_model_len=32, max_num_seqs=2, max_num_batched_tokens=4, block_size=16)
    source = load_source(str(tiny_model), options.dtype)
    captured = capture(source, options, CompileCache(None))
    options = resolve(options, captured.facts)
    result = lower(captured, options, TARGET, DebugOptions())
    context = contexts_of(options, TARGET)[0]
    regions = distinct(op.region for op in result.plan.ops).values()
    return [r for r in regions if refusal(backend_for(TARGET), r, context) is None], context


def test_row_wise_regions_of_a_model_become_a_library_that_is_cached(
    rowwise: tuple[list[Node], Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    (regions, context), backend, cache = rowwise, backend_for(TARGET), CompileCache(None)
    (built,) = build_buckets(backend, regions, [context], cache)
    library = GpuLibrary.from_bytes(built.library)
    assert [k.name for k in library.kernels] == [k.name for k in built.meta.kernels]
    assert all(k.image.startswith(b"\x7fELF") and k.target == "sm_90" for k in library.kernels)
    assert [k.grid for k in library.kernels] == [k.grid for k in built.meta.kernels]
    assert [built.kernels_of(r) for r in regions] == [[i] for i in range(len(regions))]
    monkeypatch.setattr(type(backend), "build", None)
    (again,) = build_buckets(backend, regions, [context], cache)
    assert (again.library, again.source) == (built.library, built.source)


def test_what_is_needed_is_known_without_building(rowwise: tuple[list[Node], Context]) -> None:
    regions, context = rowwise
    meta = lower_bucket(backend_for(TARGET), distinct(regions), context).meta
    assert (meta.scratch_bytes, meta.workspace_bytes) == (0, 0)
    assert all(kernel.tile["warps"] >= 1 for kernel in meta.kernels)
