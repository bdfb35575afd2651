"""Models with layers of several windows: each layer keeps its own window, and answers are those of eager."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import httpx
import numpy as np
import pytest
import torch
from engine_requests import add_request
from serving import Server
from window_rule import reads

from inferir import LLM, SamplingParams
from inferir.api.outputs import RequestOutput
from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.compile.compiler import CompileOptions, compile_model
from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.source.model_source import load_source
from inferir.ir.contract.artifact import read_manifest

WINDOWS = (20, 0, 200, 20, 20, -128)  # see window_rule
BLOCK = 16
NEW = 24
Eager = Callable[..., torch.Tensor]
GREEDY = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True)


def numbers(count: int) -> list[int]:
    found: list[int] = np.random.default_rng(count).integers(0, 256, count).tolist()
    return found


PROMPTS = [numbers(n) for n in (5, 700, 1290)]

MODELING = f"""
import torch
from transformers import MistralForCausalLM
from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.mistral.modeling_mistral import MistralModel


class LayerConfig:
    def __init__(self, config, window):
        self.config, self.sliding_window, self.attention_chunk_size = config, max(0, window) or None, -window

    def __getattr__(self, name):
        return getattr(self.config, name)


class MixedModel(MistralModel):
    def __init__(self, config):
        super().__init__(config)
        for layer, window in zip(self.layers, {WINDOWS}):
            layer.self_attn.config = LayerConfig(config, window)

    def forward(self, input_ids, position_ids=None, **kwargs):
        x = self.embed_tokens(input_ids)
        position_ids = torch.arange(x.shape[1])[None] if position_ids is None else position_ids
        rotary = self.rotary_emb(x, position_ids=position_ids)
        for layer in self.layers:
            config = layer.self_attn.config
            chunked = create_chunked_causal_mask if config.attention_chunk_size > 0 else create_causal_mask
            make = create_sliding_window_causal_mask if config.sliding_window else chunked
            mask = make(config, x, None, None, position_ids)
            x = layer(x, attention_mask=mask, position_ids=position_ids, position_embeddings=rotary)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class MixedForCausalLM(MistralForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model = MixedModel(config)
        self.post_init()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers with windows of 20 and 200 tokens, chunks of 128 and neither, by code of the model's own."""
    folder = tmp_path_factory.mktemp("mixed") / "model"
    config = families.mistral(num_hidden_layers=len(WINDOWS), max_position_embeddings=2048, sliding_window=None)
    families.write(config, folder)
    (folder / "modeling_mixed.py").write_text(MODELING)
    found = json.loads((folder / "config.json").read_text())
    found |= {
        "auto_map": {"AutoModelForCausalLM": "modeling_mixed.MixedForCausalLM"},
        "architectures": ["MixedForCausalLM"],
    }
    (folder / "config.json").write_text(json.dumps(found))
    return folder


@pytest.fixture(scope="module")
def artifact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed-art") / "art"
    limits: dict[str, Any] = {
        "max_num_batched_tokens": 384,
        "max_num_seqs": 4,
        "buckets": "1-384",
        "block_size": BLOCK,
        "jobs": 1,
    }
    options = CompileOptions(dtype="f32", trust_remote_code=True, **limits)
    compile_model(str(model), out, options, cache=CompileCache.from_env(CacheOptions()))
    return out


@pytest.fixture(scope="module")
def eager(model: Path) -> Eager:
    """Logits of a sequence by transformers' eager attention: the whole of it at once, without any cache, each layer
    with its own mask.
    """
    reference = eager_model(load_source(str(model), trust_remote_code=True))
    return functools.cache(lambda *ids: model_logits(reference, ids))


def check_greedy(eager: Eager, outputs: list[RequestOutput], prompts: list[list[int]], new: int = NEW) -> None:
    """Every token of an answer is eager's choice after the tokens before it."""
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.token_ids) == new
        chosen = eager(*prompt, *output.token_ids).argmax(-1).tolist()
        assert output.token_ids == chosen[len(prompt) - 1 : -1]


def blocks_kept(tokens: int) -> int:
    """Blocks that hold a position that the token after `tokens` tokens reads, over all layers."""
    return sum(len({p // BLOCK for p in range(tokens) if p >= reads(w).first(tokens)}) for w in WINDOWS)


@pytest.fixture
def llm(artifact: Path) -> Iterator[LLM]:
    with LLM(artifact, threads=2) as llm:
        yield llm


def test_layers_are_grouped_by_what_they_keep(artifact: Path) -> None:
    groups = read_manifest(artifact).kv
    rules = {layer: g.spec.reads for g in groups for layer in g.layers}
    assert [rules[layer] for layer in range(len(WINDOWS))] == [reads(w) for w in WINDOWS]


def test_long_sequences_of_different_lengths_give_eager_tokens_and_logits(llm: LLM, eager: Eager) -> None:
    check_greedy(eager, llm.generate(PROMPTS, GREEDY), PROMPTS)
    check_greedy(eager, llm.generate(PROMPTS, GREEDY), PROMPTS)
    assert llm.engine.stats().prefix_hits > 0, "the second time from the prefix cache"
    for chunk in (None, 50):  # shorter and longer than the larger window
        for got, prompt in zip(llm.logits(PROMPTS[1:], chunk=chunk), PROMPTS[1:], strict=True):
            torch.testing.assert_close(torch.from_numpy(got), eager(*prompt), rtol=1e-3, atol=2e-4)


def test_few_blocks_preempt_and_change_nothing(artifact: Path, eager: Eager) -> None:
    """Prompts in chunks that are shorter than the larger window; the blocks suffice until the sequences have grown."""
    block = read_manifest(artifact).memory.kv_block_bytes
    prompts = [numbers(n) for n in (500, 520, 540, 560)]
    with LLM(artifact, threads=2, kv_cache_memory=250 * block, max_num_batched_tokens=40) as llm:
        check_greedy(eager, llm.generate(prompts, replace(GREEDY, max_tokens=200)), prompts, new=200)
        assert llm.engine.stats().preemptions > 0


def test_a_sequence_keeps_its_windows_only(llm: LLM) -> None:
    """In every step after the prompt; the engine's figures count the whole pool's blocks."""
    engine = llm.engine
    page = engine.kv.groups[0].spec.page_bytes
    request = add_request(engine, PROMPTS[-1], SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))
    while not request.outputs:
        engine.step()
    engine.step()
    while engine.has_unfinished:
        stats = engine.stats()
        # what the last step read is given back when the next is planned
        assert stats.kv_bytes_used <= page * (blocks_kept(request.computed - 1) + len(WINDOWS))
        assert stats.kv_bytes_used >= page * blocks_kept(request.computed)
        engine.step()
    assert engine.stats().kv_bytes_used == 0


def test_a_server_tells_what_a_sequence_keeps(artifact: Path, tmp_path: Path) -> None:
    """In its log, and while the sequence grows as the gauge of used bytes."""
    page = read_manifest(artifact).memory.kv_block_bytes
    body = {"prompt": PROMPTS[-1], "max_tokens": 700, "ignore_eos": True, "stream": True, "temperature": 0}
    server = Server(artifact, tmp_path / "log")
    try:
        server.ready()
        line = server.wait(lambda: next((x for x in server.lines() if x.startswith("KV cache: ")), None))
        assert line.startswith("KV cache: 4.0 MiB in 1,023 blocks; a sequence of 2,048 tokens takes at most ")
        assert "128 for each of 1 group of full attention" in line
        assert "for each of 3 groups of sliding window of 20" in line
        assert "33 for each of 1 group of chunks of 128" in line

        def used() -> float:
            with server.http.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                text = httpx.get(f"{server.url}/metrics").text
            return next(float(x.split()[1]) for x in text.splitlines() if x.startswith("inferir_kv_cache_used_bytes"))

        bytes_used = server.wait(used)  # 0 if the answer was complete before anybody looked
        kept = [blocks_kept(n) for n in range(len(PROMPTS[-1]), len(PROMPTS[-1]) + 700)]
        assert page * min(kept) <= bytes_used <= page * (max(kept) + len(WINDOWS))
        assert bytes_used < page * len(WINDOWS) * (len(PROMPTS[-1]) // BLOCK) / 2, "all layers would keep all"
    finally:
        server.close()
