"""Compiled float32 models give the greedy tokens and the logits of the library's eager code, whatever their shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch

from inferir import LLM, SamplingParams
from inferir.compile.compiler import CompileOptions, compile_model
from inferir.frontend.capture.eager import eager_greedy, eager_model, model_logits
from inferir.frontend.source.model_source import load_source

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"short_factor": [1.0 + 0.05 * i for i in range(8)], "long_factor": [1.0 + 0.5 * i for i in range(8)]}
CASES: dict[str, Callable[[], Any]] = {
    "llama": families.llama,
    "explicit_head_dim": lambda: families.llama(hidden_size=96, head_dim=32),
    "width_not_divisible_by_heads": lambda: families.qwen3(
        hidden_size=100, num_attention_heads=3, num_key_value_heads=3, head_dim=16
    ),
    "one_kv_head": lambda: families.grouped(6, 1),
    "group_of_three": lambda: families.grouped(12, 4),
    "no_groups": lambda: families.grouped(7, 7),
    "group_of_five": lambda: families.grouped(10, 2),
    "biases": lambda: families.llama(attention_bias=True, mlp_bias=True),
    "gemma3": families.gemma3,
    "qwen3": families.qwen3,
    "qwen2": families.qwen2,
    "mistral": families.mistral,
    "gpt_neox": families.gpt_neox,
    "phi": families.phi,
    "stablelm": families.stablelm,
    "apertus": families.apertus,
    "rope_linear": lambda: families.llama(**families.rope("linear")),
    "rope_yarn": lambda: families.llama(**families.rope("yarn", "type")),
    "rope_dynamic": lambda: families.llama(**families.rope("dynamic")),
    "rope_longrope": lambda: families.llama(**families.rope("longrope", "type", **LONGROPE)),
    "rope_llama3": lambda: families.llama(**families.rope("llama3", **LLAMA3)),
}
LENGTHS = (1, 5, 40, 150)


def compile_small(model: Path, out: Path, **options: Any) -> Path:
    compile_model(str(model), out, CompileOptions(**families.ONE_BUCKET, **options))
    return out


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_and_logits_equal_eager(name: str, tmp_path: Path) -> None:
    model = families.write(CASES[name](), tmp_path / "model")
    artifact = compile_small(model, tmp_path / "art", dtype="f32")
    source = load_source(str(model))
    reference = eager_model(source)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, n).tolist() for n in LENGTHS]
    with LLM(artifact) as llm:
        params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
        tokens = [o.token_ids for o in llm.generate(prompts, params)]
        logits = llm.logits(prompts)
    assert tokens == [eager_greedy(reference, prompt, 24) for prompt in prompts]
    for got, want in zip(logits, (model_logits(reference, prompt) for prompt in prompts), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-3, atol=2e-4)


def test_heads_that_do_not_divide_are_refused_with_both_numbers(tmp_path: Path) -> None:
    model = families.write(families.qwen3(num_attention_heads=6, num_key_value_heads=3), tmp_path / "model")
    config = model / "config.json"
    text = config.read_text().replace('"num_attention_heads": 6', '"num_attention_heads": 5')
    config.write_text(text)
    with pytest.raises(Exception, match=r"\b5\b.*\b3\b"):
        compile_small(model, tmp_path / "art")
    assert not (tmp_path / "art").exists()


def test_an_unknown_rope_kind_is_named(tmp_path: Path) -> None:
    model = families.write(families.llama(), tmp_path / "model")
    config = model / "config.json"
    text = config.read_text().replace('"rope_type": "default"', '"rope_type": "foo"')
    assert "foo" in text
    config.write_text(text)
    with pytest.raises(Exception, match=r"rope_type.*foo"):
        compile_small(model, tmp_path / "art")
