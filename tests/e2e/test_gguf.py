"""Tiny GGUF models compiled and run: what an artifact answers is what llama.cpp computes from the same file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf_models import cases, prompt, split, vocabulary

from inferir import LLM, SamplingParams
from inferir.compiler import CompileOptions, compile_model
from inferir.ir.errors import InferirError

FIGURES = json.loads(Path(__file__).parent.parent.joinpath("frontend", "data", "gguf_logits.json").read_text())
OPTIONS = CompileOptions(dtype="f32", buckets="1,2-64", max_num_batched_tokens=64, max_model_len=320)


@pytest.mark.parametrize(("name", "parts"), [("llama-freqs", 2), ("llama-linear", 1)])
def test_a_compiled_model_gives_llama_cpps_log_probabilities(name: str, parts: int, tmp_path: Path) -> None:
    """300 tokens, in steps of 64."""
    files = split(vocabulary(cases()[name], count=256), tmp_path, parts)
    compile_model(str(files[0]), tmp_path / "art", OPTIONS)
    with LLM(tmp_path / "art") as llm:
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=4)
        (out,) = llm.generate([prompt(300)], params)
    found = out.outputs[0].logprobs
    assert found is not None
    expected = FIGURES[name]["300"]
    assert found[0].token == int(max(expected, key=expected.__getitem__))
    shared = [(p, expected[str(i)]) for i, p in found[0].top if str(i) in expected]
    assert len(shared) == 4
    assert all(abs(p - q) < 1e-3 for p, q in shared)


@pytest.mark.parametrize("key", ["llama.attention.temperature_scale", "llama.rope.scaling.yarn_beta_fast"])
def test_a_key_that_could_change_numbers_stops_the_compile(key: str, tmp_path: Path) -> None:
    path = cases()["llama"].set(key, "f32", 3.0).write(tmp_path / "model.gguf")
    with pytest.raises(InferirError, match=key):
        compile_model(str(path), tmp_path / "art", OPTIONS)
    assert not (tmp_path / "art").exists()
