"""Tiny GGUF models compiled and run: what an artifact answers is what llama.cpp computes from the same file."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from gguf_models import Gguf, cases, prompt, split, tiny, vocabulary
from tiny_gguf import byte_alphabet

from inferir import LLM, SamplingParams
from inferir.compile.compiler import CompileOptions, compile_model
from inferir.frontend.tokenizer.tokenizers_library import TokenizerWarning
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.errors import InferirError

FIGURES = json.loads(Path(__file__).parent.parent.joinpath("frontend", "gguf", "data", "gguf_logits.json").read_text())
OPTIONS = CompileOptions(dtype="f32", buckets="1-16", max_num_batched_tokens=16, max_num_seqs=4, max_model_len=320)


@pytest.mark.parametrize(("name", "parts"), [("llama-freqs", 2), ("llama-linear", 1)])
def test_a_compiled_model_gives_llama_cpps_log_probabilities(name: str, parts: int, tmp_path: Path) -> None:
    """300 tokens, in steps of 16."""
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


MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NORMAL, CONTROL = 1, 3
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chain(*texts: str) -> Gguf:
    """A model in which each of these tokens is followed by the next, whatever stood before, with a ChatML template.

    Only <|endoftext|> is declared to end a text.
    """
    gguf = tiny("llama")
    count = len(gguf.get("tokenizer.ggml.tokens"))
    unused = [f"<unused{i}>" for i in range(count - len(MARKS) - 256)]
    tokens = [*MARKS, *unused, *byte_alphabet()]
    kinds = [CONTROL] * len(MARKS) + [NORMAL] * (count - len(MARKS))
    gguf = gguf.set("tokenizer.ggml.model", "text", "gpt2").set("tokenizer.ggml.pre", "text", "smollm")
    gguf = gguf.set("tokenizer.ggml.tokens", "text list", tokens).set("tokenizer.ggml.token_type", "i32 list", kinds)
    gguf = gguf.set("tokenizer.ggml.merges", "text list", []).set("tokenizer.ggml.eos_token_id", "u32", 0)
    gguf = gguf.drop("tokenizer.ggml.bos_token_id").drop("tokenizer.ggml.unknown_token_id")
    gguf = gguf.set("tokenizer.chat_template", "text", CHATML)
    embeddings = np.sign(np.random.default_rng(0).standard_normal((count, 64))).astype(np.float32)
    head = np.zeros_like(embeddings)
    for token, after in itertools.pairwise(map(tokens.index, texts)):
        head[after] += embeddings[token]
    for name, values, _ in list(gguf.tensors):
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            gguf = gguf.tensor(name, values * np.float32(1e-4))
    return gguf.tensor("token_embd.weight", embeddings).tensor("output.weight", head)


def test_an_answer_ends_where_the_template_ends_a_turn(tmp_path: Path) -> None:
    """By a control token that no key of the file declares: the model goes on with other letters if it is let."""
    path = chain("Ċ", "Y", "<|im_end|>", "X", "Z", "Q").write(tmp_path / "model.gguf")
    compile_model(str(path), tmp_path / "art", OPTIONS)
    ends = {d.value: d.source for d in read_manifest(tmp_path / "art").model.decisions if d.subject == "end of text"}
    assert ends == {
        "0 <|endoftext|>": "model.gguf: tokenizer.ggml.eos_token_id",
        "2 <|im_end|>": "model.gguf: tokenizer.chat_template: ends the assistant's turn",
    }
    with LLM(tmp_path / "art") as llm:
        (answer,) = llm.chat([{"role": "user", "content": "X"}], SamplingParams(temperature=0.0, max_tokens=5))
        assert (answer.outputs[0].text, answer.outputs[0].finish_reason) == ("Y", "stop")
        on = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        (answer,) = llm.chat([{"role": "user", "content": "X"}], on)
        assert answer.outputs[0].text == "YXZQ"


def test_decisions_and_warnings_are_the_same_from_the_cache(tmp_path: Path) -> None:
    """Each fact once, with the name that the file has now, and what was odd about the file is said again."""
    gguf = chain("Ċ", "Y").drop("tokenizer.ggml.pre")
    for name in ("one", "two"):
        with pytest.warns(TokenizerWarning, match=rf"{name}\.gguf: tokenizer\.ggml\.pre is missing"):
            compile_model(str(gguf.write(tmp_path / f"{name}.gguf")), tmp_path / name, OPTIONS)
    with pytest.warns(TokenizerWarning, match=r"two\.gguf: tokenizer\.ggml\.pre is missing"):
        compile_model(str(tmp_path / "two.gguf"), tmp_path / "two", OPTIONS)
    decisions = read_manifest(tmp_path / "two").model.decisions
    assert len(set(decisions)) == len(decisions)
    assert {"architecture", "rope", "tokenizer", "end of text"} <= {d.subject for d in decisions}
    assert not [d for d in decisions if "one.gguf" in d.source]


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.gguf"))
    chain("Ċ", "Y").write(path)
    compile_model(str(path), tmp_path / "art", OPTIONS)
    model = read_manifest(tmp_path / "art").model
    assert model.name == "caf_"
    assert {d.source for d in model.decisions if d.subject == "tokenizer"} == {"caf_.gguf: tokenizer.ggml.model"}
