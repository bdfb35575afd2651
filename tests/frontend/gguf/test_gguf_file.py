"""A real GGUF model: config, tokenizer, weights and capture."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest
import torch
from tokenizers import Tokenizer

from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.capture.trace import TracedModel, trace
from inferir.frontend.capture.trace_check import check_trace
from inferir.frontend.gguf.gguf_weights import GgufWeights
from inferir.frontend.source.export_tokenizer import export_tokenizer
from inferir.frontend.source.model_source import ModelSource, load_source
from inferir.ir.errors import FrontendError, WeightError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.interpreter import interpret

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def source(smollm2: Path) -> ModelSource:
    return load_source(str(smollm2), "f32")


@pytest.fixture(scope="module")
def traced(source: ModelSource) -> TracedModel:
    return trace(source)


def test_facts(traced: TracedModel) -> None:
    facts = traced.facts
    assert (facts.model_type, facts.num_layers, facts.vocab_size, facts.hidden_size) == ("llama", 30, 49152, 576)
    layer = facts.layers[0]
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.reads) == (9, 3, 64, "full_attention")
    assert facts.max_position_embeddings == 8192
    assert 2 in facts.eos_token_ids
    assert facts.tie_word_embeddings
    assert "lm_head.weight" not in traced.graph.weights()


def test_logits_equal_eager(source: ModelSource, traced: TracedModel) -> None:
    check_trace(traced, source)
    ids = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2]
    want = model_logits(eager_model(source), ids)
    inputs = {"ids": torch.tensor(ids, dtype=torch.int32), "positions": torch.arange(len(ids), dtype=torch.int32)}
    got = interpret(traced.graph, inputs, traced.weights(source.weights))["logits"]
    assert (got - want).abs().max() <= 1e-3
    assert torch.equal(got.argmax(-1), want.argmax(-1))


def test_default_type_is_half_precision(smollm2: Path) -> None:
    assert load_source(str(smollm2)).dtype is DType.BF16


def test_tokenizer_stands_alone(source: ModelSource, tmp_path: Path) -> None:
    facts = export_tokenizer(source, tmp_path)
    assert (facts.size, (tmp_path / "chat_template.jinja").is_file()) == (49152, True)
    assert json.loads((tmp_path / "special_tokens_map.json").read_text())["eos_token"] == "<|im_end|>"
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    template = jinja2.Environment().from_string((tmp_path / "chat_template.jinja").read_text())
    text = template.render(messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    # llama.cpp's ids of the same text.
    assert ids == [
        1,
        9690,
        198,
        2683,
        359,
        253,
        5356,
        5646,
        11173,
        3365,
        3511,
        308,
        34519,
        28,
        7018,
        411,
        407,
        19712,
        8182,
        2,
        198,
        1,
        4093,
        198,
        26843,
        2,
        198,
        1,
        520,
        9531,
        198,
    ]
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert special["eos_token"] == "<|im_end|>"
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2


def test_fingerprint_depends_on_content_and_type(smollm2: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other-name.gguf"
    copy.write_bytes(smollm2.read_bytes())
    assert GgufWeights(copy, DType.F32).fingerprint() == GgufWeights(smollm2, DType.F32).fingerprint()
    assert GgufWeights(copy, DType.BF16).fingerprint() != GgufWeights(smollm2, DType.F32).fingerprint()


@pytest.mark.parametrize("keep", [1000, 60_000_000])
def test_truncated_file_is_named(keep: int, smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2.open("rb") as f:
        cut.write_bytes(f.read(keep))
    source = load_source(str(cut), "f32")
    with pytest.raises((WeightError, FrontendError), match=r"cut\.gguf") as error:
        trace(source).weights(source.weights)
    assert "\n" not in str(error.value)
