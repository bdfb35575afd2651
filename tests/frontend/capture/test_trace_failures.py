"""Models that cannot be traced: the error names module, operator and source line, and nothing is silently dropped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferir.frontend.capture.export import export
from inferir.frontend.capture.trace import trace
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import FrontendError, UntraceableError

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x


class Numpy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(x.detach().numpy())


class Item(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.zeros(int(x.max().item())).sum()


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.zeros(3, 3)


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.blocks = torch.nn.ModuleList([torch.nn.Identity(), inner])

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        x = self.table(input_ids)
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=x)


@pytest.mark.parametrize(
    ("inner", "code", "hint"),
    [
        (Branch, "if x.sum() > 0:", "torch.where"),
        (Numpy, "x.detach().numpy()", "numpy in forward"),
        (Item, "x.max().item()", "depends on tensor values"),
        (Broken, "x @ torch.zeros(3, 3)", "Hint"),
    ],
)
def test_error_names_module_line_and_hint(inner: type[torch.nn.Module], code: str, hint: str) -> None:
    with pytest.raises(UntraceableError) as error:
        export(Outer(inner()).eval())
    text = str(error.value)
    assert "module 'blocks.1'" in text
    assert "test_trace_failures.py:" in text
    assert code in text
    assert hint in text
    assert "\n" not in text


def test_error_names_the_operator() -> None:
    with pytest.raises(UntraceableError, match=r"at operator aten\.(matmul|mm|bmm|view|expand)"):
        export(Outer(Broken()).eval())


class Limited(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] > 64 else x


class Fixed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(17)[None, :, None]


class Paired(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[1] // 2, -1).reshape(x.shape)


@pytest.mark.parametrize(
    ("inner", "condition"), [(Limited, "tokens <= 64"), (Fixed, "Eq(tokens, 17)"), (Paired, "tokens//2")]
)
def test_code_that_depends_on_the_token_count_is_refused(inner: type[torch.nn.Module], condition: str) -> None:
    with pytest.raises(UntraceableError) as error:
        export(Outer(inner()).eval())
    text = str(error.value)
    assert "module 'blocks.1'" in text
    assert condition in text
    assert "number of tokens" in text


def test_the_line_of_a_token_count_test_is_named() -> None:
    with pytest.raises(UntraceableError, match=r"test_trace_failures\.py:\d+"):
        export(Outer(Limited()).eval())


def test_indivisible_heads_fail_with_both_numbers(save_tiny: SaveTiny, edited: Edited) -> None:
    folder = edited(save_tiny("qwen3"), num_attention_heads=5, num_key_value_heads=2)
    with pytest.raises(UntraceableError, match=r"5 query heads and 2 key-value heads") as error:
        trace(load_source(str(folder)))
    assert "model.layers.0.self_attn" in str(error.value)


def test_unknown_rope_type_is_named(save_tiny: SaveTiny, edited: Edited) -> None:
    for spelling in ("type", "rope_type"):
        scaling = {spelling: "foo", "factor": 2.0}
        folder = edited(save_tiny("llama"), ("rope_parameters",), rope_scaling=scaling)
        with pytest.raises(UntraceableError, match="rope_type 'foo' is not known"):
            trace(load_source(str(folder)))


def test_rope_without_factor_is_named(save_tiny: SaveTiny, edited: Edited) -> None:
    folder = edited(save_tiny("llama"), ("rope_parameters",), rope_scaling={"rope_type": "linear"})
    with pytest.raises(FrontendError, match="factor"):
        trace(load_source(str(folder)))


def test_position_tables_limit_the_length(save_tiny: SaveTiny) -> None:
    source = load_source(str(save_tiny("opt")))
    traced = trace(source)
    assert traced.facts.position_limit == 256
    assert traced.facts.max_position_embeddings == 256
    assert trace(load_source(str(save_tiny("llama")))).facts.position_limit == 0


def test_experts_are_refused_by_operator(save_tiny: SaveTiny) -> None:
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4}
    folder = save_tiny("qwen2_moe", num_hidden_layers=1, layer_types=["full_attention"], **sizes)
    with pytest.raises(UntraceableError, match=r"model\.layers\.0\.mlp"):
        trace(load_source(str(folder)))


def test_fixed_attention_classes_are_refused(save_tiny: SaveTiny) -> None:
    with pytest.raises(FrontendError, match="'falcon' choose their attention from a fixed table"):
        trace(load_source(str(save_tiny("falcon", ffn_hidden_size=96))))


MODELING = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

class TinyConfig(PreTrainedConfig):
    model_type = "tiny_custom"
    hidden_size = 8
    vocab_size = 50

class Gate(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x

class TinyForCausalLM(PreTrainedModel):
    config_class = TinyConfig
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.gate = Gate()
        self.post_init()

    def forward(self, input_ids, position_ids=None, use_cache=False):
        return CausalLMOutput(logits=self.gate(self.table(input_ids)))
"""


@pytest.fixture
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with its own model code, whose forward branches on data."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / "modeling_tiny.py").write_text(MODELING)
    auto = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"}
    config = {"model_type": "tiny_custom", "auto_map": auto, "dtype": "float32", "architectures": ["TinyForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_custom_code_needs_consent(custom: Path) -> None:
    with pytest.raises(FrontendError, match="trust_remote_code") as error:
        trace(load_source(str(custom)))
    assert "\n" not in str(error.value)


def test_custom_code_that_branches_on_data_is_located(custom: Path) -> None:
    with pytest.raises(UntraceableError, match=r"module 'gate' \(.*modeling_tiny\.py:13: if x\.sum\(\) > 0:\)"):
        trace(load_source(str(custom), trust_remote_code=True))
