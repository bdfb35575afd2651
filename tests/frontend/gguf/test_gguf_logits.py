"""Every family and every rotary scaling that GGUF files know, against what llama.cpp computes from the same bytes.

`data/gguf_logits.json` holds llama.cpp's log-probabilities (see benchmarks/gguf_figures.py). A second reference,
written here from the format's rules, computes a llama model without any of the code under test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_models import HEADS, KV_HEADS, LAYERS, Gguf, cases, prompt, tiny

from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.capture.trace import trace
from inferir.frontend.capture.trace_check import check_trace
from inferir.frontend.checkpoint.huggingface import skeleton, state_types, tied_names
from inferir.frontend.gguf.gguf_weights import GgufWeights
from inferir.frontend.source.model_source import load_source
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.interpreter import interpret

FIGURES = json.loads((Path(__file__).parent / "data" / "gguf_logits.json").read_text())
# llama.cpp looks GELU up in a table of half precision, and multiplies half-precision and 8-bit matrices with rounded
# activations.
GELU = ("gemma", "gemma2", "gemma3", "starcoder2", "gpt2")
TRACED = ("llama-freqs", "llama-yarn", "qwen2-linear", "qwen3", "gemma3-yarn", "phi3-longrope", "stablelm-parallel")


def tolerance(name: str) -> float:
    if name in ("llama-f16", "llama-q8"):
        return 0.2 if name == "llama-q8" else 0.02
    return 4e-3 if name.split("-")[0] in GELU else 2e-4


def our_model(path: Path) -> torch.nn.Module:
    """transformers' code over our configuration and our weights."""
    source = load_source(str(path), "f32")
    model = skeleton(source.config, torch.float32, "eager")
    weights = GgufWeights(path, DType.F32)
    state = {name: weights.load(name) for name in state_types(model)}
    state.update({alias: state[name] for alias, name in tied_names(model).items()})
    model.load_state_dict(state, assign=True)
    assert isinstance(model, torch.nn.Module)
    return model


def difference(name: str, logits: Callable[[list[int]], torch.Tensor]) -> float:
    """Largest difference to llama.cpp's log-probabilities of the next token, over all prompts of a case."""
    worst = 0.0
    for length, expected in FIGURES[name].items():
        got = logits(prompt(int(length)))[-1].float().log_softmax(-1)
        worst = max(worst, *(abs(float(got[int(i)]) - p) for i, p in expected.items()))
    return worst


@pytest.mark.parametrize("name", sorted(cases()))
def test_log_probabilities_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    model = our_model(cases()[name].write(tmp_path / "model.gguf"))
    assert difference(name, lambda ids: model_logits(model, ids)) < tolerance(name)


@pytest.mark.parametrize("name", TRACED)
def test_the_captured_graph_gives_them_too(name: str, tmp_path: Path) -> None:
    source = load_source(str(cases()[name].write(tmp_path / "model.gguf")), "f32")
    traced = trace(source)
    weights = traced.weights(source.weights)
    check_trace(traced, source)

    def logits(ids: list[int]) -> torch.Tensor:
        inputs = {"ids": torch.tensor(ids, dtype=torch.int32)}
        inputs["positions"] = torch.arange(len(ids), dtype=torch.int32)
        if "lengths" in traced.graph.input_names:
            inputs["lengths"] = torch.full((len(ids),), len(ids), dtype=torch.int32)
        out = interpret(traced.graph, inputs, weights)["logits"]
        assert isinstance(out, torch.Tensor)
        return out

    assert difference(name, logits) < tolerance(name)


@pytest.mark.parametrize("name", ["llama-freqs", "gemma3", "phi3-longrope", "stablelm", "gpt2", "nemotron", "gemma"])
def test_the_reference_of_verify_reads_the_same_model(name: str, tmp_path: Path) -> None:
    """Its weights come through another loader, but for an architecture which that does not know."""
    model = eager_model(load_source(str(cases()[name].write(tmp_path / "model.gguf")), "f32"))
    assert difference(name, lambda ids: model_logits(model, ids)) < tolerance(name)


def test_scalings_differ_from_none() -> None:
    """The figures would not tell if a scaling did nothing."""
    plain = FIGURES["llama"]["300"]
    for name in ("llama-linear", "llama-yarn", "llama-freqs", "llama-attn-factor", "llama-longrope"):
        shared = set(plain) & set(FIGURES[name]["300"])
        assert len(shared) < 8 or any(abs(plain[i] - FIGURES[name]["300"][i]) > 0.05 for i in shared)


def reference(gguf: Gguf, ids: list[int], angles: np.ndarray, magnitude: float = 1.0) -> np.ndarray:
    """Logits [T, V] of a llama model by the format's rules, where neighbours rotate. angles: radians per position."""
    w = {name: values.astype(np.float64) for name, values, _ in gguf.tensors}
    head = w["blk.0.attn_q.weight"].shape[0] // HEADS

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    def rotate(x: np.ndarray) -> np.ndarray:
        theta = np.arange(len(ids))[:, None, None] * angles[None, None]
        cos, sin, even, odd = np.cos(theta) * magnitude, np.sin(theta) * magnitude, x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    mask = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for i in range(LAYERS):
        b = f"blk.{i}."
        h = norm(x, w[b + "attn_norm.weight"])
        q = rotate((h @ w[b + "attn_q.weight"].T).reshape(len(ids), HEADS, head))
        k = rotate((h @ w[b + "attn_k.weight"].T).reshape(len(ids), KV_HEADS, head)).repeat(HEADS // KV_HEADS, 1)
        v = (h @ w[b + "attn_v.weight"].T).reshape(len(ids), KV_HEADS, head).repeat(HEADS // KV_HEADS, 1)
        scores = np.einsum("thd,shd->hts", q, k) / math.sqrt(head) + mask
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + mixed @ w[b + "attn_output.weight"].T
        h = norm(x, w[b + "ffn_norm.weight"])
        gate, up = h @ w[b + "ffn_gate.weight"].T, h @ w[b + "ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[b + "ffn_down.weight"].T
    return norm(x, w["output_norm.weight"]) @ w["output.weight"].T


PLAIN = 10000.0 ** (-np.arange(8) / 8)


def by_yarn(factor: float, original: int) -> np.ndarray:
    """The published rule: by how often a frequency turns within the original context, kept (32 and more), divided (1
    and less), or in between, with the borders at whole numbers of pairs.
    """
    border = [16 * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(10000.0)) for turns in (32.0, 1.0)]
    low, high = max(0, math.floor(border[0])), min(15, math.ceil(border[1]))
    share = np.clip((np.arange(8) - low) / max(high - low, 1e-3), 0, 1)
    return PLAIN * (1 - share) + PLAIN / factor * share


@pytest.mark.parametrize(
    ("name", "angles", "magnitude"),
    [
        ("llama", PLAIN, 1.0),
        ("llama-linear", PLAIN / 4, 1.0),
        ("llama-yarn", by_yarn(4.0, 64), 1 + 0.1 * math.log(4.0)),
        ("llama-freqs", None, 1.0),
        ("llama-attn-factor", PLAIN, 1.2),
    ],
)
def test_a_llama_written_from_the_rules(name: str, angles: np.ndarray | None, magnitude: float, tmp_path: Path) -> None:
    gguf = cases()[name]
    if angles is None:
        angles = PLAIN / next(values for tensor, values, _ in gguf.tensors if tensor == "rope_freqs.weight")
    ids = prompt(300)
    want = reference(gguf, ids, angles, magnitude)
    got = model_logits(our_model(gguf.write(tmp_path / "model.gguf")), ids).numpy()
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


def test_blocks_are_dequantised_by_the_rule(tmp_path: Path) -> None:
    """Q8_0: a half-precision scale times signed bytes."""
    gguf = cases()["llama-q8"]
    raw = next(values for name, values, _ in gguf.tensors if name == "blk.0.ffn_up.weight")
    blocks = raw.reshape(-1, 34)
    want = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 2:].copy().view(np.int8)
    got = GgufWeights(gguf.write(tmp_path / "model.gguf"), DType.F32).load("model.layers.0.mlp.up_proj.weight")
    assert torch.equal(got, torch.from_numpy(want.reshape(got.shape)))


def test_tiny_models_are_not_trivial() -> None:
    """The same prompt gives other tokens with another seed."""
    ids = prompt(60)
    a, b = (reference(tiny("llama", seed), ids, PLAIN)[-1] for seed in (0, 1))
    assert a.argmax() != b.argmax()
