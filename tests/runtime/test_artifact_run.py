"""A compiled artifact, end to end: loading, step programs, worker threads, the Python API."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.contract.artifact import read_manifest, write_manifest
from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.manifest import Call, IORecord, ResidentArg, WeightArg
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.contract.target import Target
from inferir.ir.errors import ArtifactError, EngineError, RequestError, TargetError
from inferir.ir.graph.dtypes import DType
from inferir.runtime.executor.cpu.cpu_executor import check_features
from inferir.runtime.executor.executors import check_target

VOCAB = 50
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def expected(prompt: list[int], count: int, step: int = 3) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((tokens[-1] + (len(tokens) - 1) * step) % VOCAB)
    return tokens[len(prompt) :]


def worker_threads() -> int:
    return sum(t.name.startswith("inferir-worker") for t in threading.enumerate())


@pytest.fixture(params=[1, 3])
def llm(compiled_artifact: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(compiled_artifact, threads=request.param) as llm:
        assert worker_threads() == request.param - 1
        yield llm
    assert worker_threads() == 0


def test_generate(llm: LLM) -> None:
    prompts = [[i + 1] * (i * 5 + 1) for i in range(9)]
    outputs = llm.generate(prompts, GREEDY)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt_token_ids == prompt
        assert output.token_ids == expected(prompt, 20)
        assert (output.finish_reason, output.text) == ("length", "")
    assert llm.engine.kv.pool.num_used == 0


def test_one_prompt_and_params_per_prompt(llm: LLM) -> None:
    (one,) = llm.generate([7, 8], GREEDY)
    assert one.token_ids == expected([7, 8], 20)
    short = SamplingParams(max_tokens=1, temperature=0)
    assert [len(o.token_ids) for o in llm.generate([[1], [2]], [short, GREEDY])] == [1, 20]
    assert llm.generate(np.array([7, 8]), GREEDY)[0].token_ids == one.token_ids
    with pytest.raises(RequestError, match="1 sampling parameters were given for 2 prompts"):
        llm.generate([[1], [2]], [short])


def test_end_of_sequence(llm: LLM) -> None:
    start = next(i for i in range(VOCAB) if VOCAB - 1 in expected([i], 40))
    tokens = expected([start], 40)
    (output,) = llm.generate([start], SamplingParams(temperature=0, max_tokens=40))
    assert output.token_ids == tokens[: tokens.index(VOCAB - 1) + 1]
    assert output.finish_reason == "stop"


def test_a_bad_prompt_starts_none(llm: LLM) -> None:
    with pytest.raises(RequestError, match="token id 50"):
        llm.generate([[1], [50]], GREEDY)
    with pytest.raises(EngineError, match="no tokenizer"):
        llm.generate("text", GREEDY)
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hi"}])
    assert not llm.engine.has_unfinished


def test_logits(llm: LLM) -> None:
    tokens = [1, *expected([1], 30)]
    for chunk in (1, 7, None):
        (rows,) = llm.logits([tokens], chunk=chunk)
        assert rows.shape == (31, VOCAB)
        assert rows.argmax(1).tolist() == [*tokens[1:], expected([1], 31)[-1]]


def test_threads_share_steps(llm: LLM) -> None:
    results: dict[int, list[int]] = {}

    def work(start: int) -> None:
        results[start] = llm.generate([start], GREEDY)[0].token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == {i: expected([i], 20) for i in range(6)}


def test_closed(compiled_artifact: Path) -> None:
    llm = LLM(compiled_artifact, threads=2)
    stream = llm.stream([1], GREEDY)
    llm.close()
    llm.close()
    assert list(stream) == []
    assert stream.output.finish_reason == "abort"
    with pytest.raises(EngineError, match="closed"):
        llm.generate([1], GREEDY)


def test_an_abandoned_stream_gives_back_its_blocks(llm: LLM) -> None:
    stream = llm.stream([1], GREEDY)
    del stream
    gc.collect()
    llm.generate([2], GREEDY)
    assert not llm.engine.has_unfinished
    assert llm.engine.kv.pool.num_used == 0
    assert not llm._local._loop._takers


def test_profile_has_a_time_for_each_operation(llm: LLM) -> None:
    program = llm.engine.executor.program(BatchDescriptor(1, True))
    cycles = program.profile(StepCounts(1, 1, 1, 1))
    assert cycles.shape == (4,)
    assert (cycles >= 0).all()
    assert cycles.sum() > 0


def test_process_ends_cleanly_without_close(compiled_artifact: Path) -> None:
    program = f"from inferir import LLM; print(LLM({str(compiled_artifact)!r}, threads=3).generate([1])[0].token_ids)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split(",")) > 1


def test_moved_artifact_works_and_damaged_one_is_refused(compiled_artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(compiled_artifact, copy)
    with LLM(copy, threads=1) as llm:
        assert llm.generate([1], GREEDY)[0].token_ids == expected([1], 20)
    for name in read_manifest(copy).files:
        content = (copy / name).read_bytes()
        for bad in (content[: len(content) // 2], b"", content[:-1] + bytes([content[-1] ^ 1])):
            (copy / name).write_bytes(bad)
            with pytest.raises(ArtifactError, match=name):
                LLM(copy)
        (copy / name).write_bytes(content)


def test_interface_version_and_missing_input(compiled_artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(compiled_artifact, copy)
    manifest = read_manifest(copy)
    write_manifest(copy, msgspec.structs.replace(manifest, abi=99))
    with pytest.raises(ArtifactError, match="interface 99"):
        LLM(copy)
    write_manifest(copy, msgspec.structs.replace(manifest, counts=(*manifest.counts, "X")))
    with pytest.raises(ArtifactError, match="kernels count T, S, R, A, M, G, X, this runtime T, S, R, A, M, G"):
        LLM(copy)
    inputs = tuple(i for i in manifest.inputs if i.name != "seed")
    write_manifest(copy, msgspec.structs.replace(manifest, inputs=inputs))
    with pytest.raises(ArtifactError, match="the step has no seed"):
        LLM(copy)


def with_resident_step(artifact: Path, folder: Path) -> Path:
    """A copy whose kernels read "step" from a resident buffer instead of a weight."""
    shutil.copytree(artifact, folder)
    manifest = read_manifest(folder)

    def moved(call: Call) -> Call:
        args = tuple(ResidentArg("step") if a == WeightArg("step") else a for a in call.args)
        return msgspec.structs.replace(call, args=args)

    buckets = tuple(
        msgspec.structs.replace(b, program=tuple(moved(call) for call in b.program)) for b in manifest.buckets
    )
    residents = (IORecord(name="step", dtype=DType.I32, shape=(1,)),)
    write_manifest(folder, msgspec.structs.replace(manifest, buckets=buckets, residents=residents))
    return folder


@pytest.mark.parametrize("threads", [1, 3])
def test_a_resident_buffer_is_changed_between_steps(compiled_artifact: Path, tmp_path: Path, threads: int) -> None:
    with LLM(with_resident_step(compiled_artifact, tmp_path / "copy"), threads=threads) as llm:
        (step,) = llm.engine.executor.residents.values()
        assert step.tolist() == [0]
        for value in (0, 3, 7):
            step[0] = value
            for _ in range(2):  # it stays as it is
                assert llm.generate([1, 2], GREEDY)[0].token_ids == expected([1, 2], 20, value)


def test_a_resident_buffer_must_be_declared(compiled_artifact: Path, tmp_path: Path) -> None:
    folder = with_resident_step(compiled_artifact, tmp_path / "copy")
    with pytest.raises(ArtifactError, match="no resident 'step'"):
        write_manifest(folder, msgspec.structs.replace(read_manifest(folder), residents=()))


def test_options_beyond_the_artifact(compiled_artifact: Path) -> None:
    with pytest.raises(EngineError, match="max_num_seqs=9 must be from 1 to 8"):
        LLM(compiled_artifact, max_num_seqs=9)
    with pytest.raises(EngineError, match="threads is 0"):
        LLM(compiled_artifact, threads=0)
    with pytest.raises(EngineError, match="kv_cache_memory of 40 bytes"):
        LLM(compiled_artifact, kv_cache_memory=40)
    with LLM(compiled_artifact, kv_cache_memory=5 * 32, threads=1) as llm:
        with pytest.raises(RequestError, match="holds 16 per request"):
            llm.generate([1] * 20)
        assert llm.generate([[1], [2], [3]], GREEDY)[2].token_ids == expected([3], 15)


def test_target_check() -> None:
    target = Target.host()
    with pytest.raises(TargetError, match=f"compiled for {target.name.replace('+', '.')}, .*avx2"):
        check_features(target, frozenset({"sse4_2", "avx"}))
    check_target(target)
    other = msgspec.convert({**target.record(), "kind": "cuda"}, Target)
    with pytest.raises(TargetError, match=r"compiled for .*: unknown executor 'cuda'; known: cpu"):
        check_target(other)
