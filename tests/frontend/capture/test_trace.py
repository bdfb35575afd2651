"""The trace as a whole: facts, storage, and models whose rotary frequencies depend on the batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inferir.frontend.capture.eager import eager_greedy, eager_model, model_logits
from inferir.frontend.capture.trace import TracedModel, trace
from inferir.frontend.capture.trace_check import check_trace
from inferir.frontend.facts import first_id, token_ids
from inferir.frontend.source.model_source import load_source
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.interpreter import interpret

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]


@pytest.fixture(scope="module")
def traced(save_tiny: SaveTiny) -> TracedModel:
    return trace(load_source(str(save_tiny("gemma3_text"))))


def test_graph_interface(traced: TracedModel) -> None:
    graph = traced.graph
    assert graph.input_names == ("ids", "positions")
    assert [v.type.dtype for v in graph.inputs] == [DType.I32, DType.I32]
    assert [v.type.shape for v in graph.inputs] == [(T,), (T,)]
    (logits,) = graph.outputs
    assert graph.output_names == ("logits",)
    assert (logits.type.shape, logits.type.dtype) == ((T, 160), DType.F32)
    assert {node.op for node in graph.nodes if node.op.startswith("attn.")} == {"attn.attention"}


def test_facts(traced: TracedModel) -> None:
    facts = traced.facts
    assert not facts.length_dependent
    assert facts.architecture == "Gemma3ForCausalLM"
    assert (facts.hidden_size, facts.num_layers, facts.vocab_size) == (48, 2, 160)
    assert [layer.module for layer in facts.layers] == [f"model.layers.{i}.self_attn" for i in (0, 1)]
    assert facts.layers[0].head_dim == 16
    assert (facts.bos_token_id, facts.pad_token_id) == (1, 0)
    assert facts.parameters == sum(int(torch.tensor(shape).prod()) for shape, _ in traced.expected.types.values())


def test_ids_from_many_places() -> None:
    assert token_ids(3, [4, 3], None, [], True, -1) == (3, 4)
    assert first_id(None, [], 7) == 7
    assert first_id(None) is None


def test_saved_trace_is_the_same(traced: TracedModel, tmp_path: Path) -> None:
    traced.save(tmp_path)
    loaded = TracedModel.load(tmp_path)
    assert loaded.graph.structural_hash() == traced.graph.structural_hash()
    assert loaded.facts == traced.facts
    assert loaded.expected == traced.expected
    assert loaded.constants.keys() == traced.constants.keys()
    assert all(torch.equal(loaded.constants[k], v) for k, v in traced.constants.items())


def test_tracing_is_deterministic(traced: TracedModel, save_tiny: SaveTiny) -> None:
    again = trace(load_source(str(save_tiny("gemma3_text"))))
    assert again.graph.structural_hash() == traced.graph.structural_hash()


SCALING = {
    "dynamic": ({"factor": 4.0}, 64),
    "longrope": (
        {
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0 + i / 10 for i in range(6)],
            "long_factor": [2.0 + i for i in range(6)],
        },
        256,
    ),
}


@pytest.mark.parametrize(("kind", "spelling"), [("dynamic", "type"), ("longrope", "rope_type")])
def test_rope_of_the_whole_batch_follows_each_sequence(
    kind: str, spelling: str, save_tiny: SaveTiny, edited: Edited
) -> None:
    """Below and above the threshold a prompt gets what transformers gives it alone."""
    scaling, longest = SCALING[kind]
    folder = edited(
        save_tiny("llama", num_hidden_layers=1),
        ("rope_parameters",),
        rope_scaling={spelling: kind, **scaling},
        rope_theta=1e4,
        max_position_embeddings=longest,
    )
    source = load_source(str(folder))
    result = trace(source)
    assert result.facts.length_dependent
    assert result.graph.input_names == ("ids", "positions", "lengths")
    assert result.facts.max_position_embeddings == 256
    weights = result.weights(source.weights)

    def logits(ids: list[int], length: int) -> torch.Tensor:
        inputs = {
            "ids": torch.tensor(ids, dtype=torch.int32),
            "positions": torch.arange(len(ids), dtype=torch.int32),
            "lengths": torch.full((len(ids),), length, dtype=torch.int32),
        }
        out = interpret(result.graph, inputs, weights)["logits"]
        assert isinstance(out, torch.Tensor)
        return out

    for n in (10, 64, 65, 200):
        ids = [(i * 37 + 11) % 157 + 3 for i in range(n)]
        want = model_logits(eager_model(source), ids)
        assert torch.allclose(logits(ids, n), want, atol=2e-4), n
    assert not torch.allclose(logits(ids, 64), want, atol=1e-2)
    check_trace(result, source)


def test_greedy_reference_agrees_with_its_own_logits(save_tiny: SaveTiny) -> None:
    source = load_source(str(save_tiny("llama")))
    prompt = [5, 6, 7]
    model = eager_model(source)
    new = eager_greedy(model, prompt, 6)
    assert len(new) == 6
    logits = model_logits(model, prompt + new)
    assert [int(row.argmax()) for row in logits[2:-1]] == new


def test_reading_weights_and_facts_loads_no_transformers(save_tiny: SaveTiny) -> None:
    """A warm compile reads checkpoint and facts only; neither may pull in transformers, nor torch before a tensor is
    read.
    """
    code = (
        "import sys\n"
        "from inferir.frontend.source.model_source import load_source\n"
        "source = load_source(sys.argv[1])\n"
        "source.weights.fingerprint(), source.weights.names(), source.description_digest(), source.tokenizer_digest()\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules, 'loaded'\n"
        "source.weights.load(source.weights.names()[0])\n"
        "assert 'torch' in sys.modules and 'transformers' not in sys.modules\n"
        "from inferir.frontend.capture.trace import TracedModel\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(save_tiny("llama"))], check=True, timeout=60)
