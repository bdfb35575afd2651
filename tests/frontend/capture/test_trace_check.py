"""The trace check passes what is right and name what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from inferir.frontend.capture.trace import trace
from inferir.frontend.capture.trace_check import TOLERANCE, check_capture, check_trace, with_local_attention
from inferir.frontend.checkpoint.checkpoint_files import WeightWarning
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import UntraceableError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.rewrite import transform

SaveTiny = Callable[..., Path]
Capture = Callable[..., Any]


@pytest.mark.parametrize(("model_type", "dtype"), [("llama", "f32"), ("gemma3_text", "bf16"), ("opt", "f32")])
def test_models_pass(model_type: str, dtype: str, save_tiny: SaveTiny) -> None:
    source = load_source(str(save_tiny(model_type)), dtype)
    errors = check_trace(trace(source), source)
    assert set(errors) == {1, 7, 13}
    assert all(error <= TOLERANCE[source.dtype] for error in errors.values())


def run(captured: Any, graph: Graph | None = None) -> None:
    """Trace check of a small captured module, or of another graph in its place."""
    module = captured.module

    def eager(ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            out = module(torch.tensor([list(ids)]), torch.tensor([list(positions)]), use_cache=False).logits[0]
        assert isinstance(out, torch.Tensor)
        return out

    weights = {**dict(module.state_dict()), **captured.constants}
    check_capture(graph or captured.graph, weights, eager, 50, DType.F32)


def positional(m: Any, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x * (p[..., None] * 0.3).cos(), m.w).relu()


def test_a_token_local_function_passes(capture: Capture) -> None:
    run(capture(positional))


def test_a_wrong_import_is_found(capture: Capture) -> None:
    captured = capture(positional)

    def drop(node: Node, operands: tuple[Value, ...]) -> Value | None:
        return operands[0] if node.op == "tensor.relu" else None

    with pytest.raises(UntraceableError, match="differs from the model's own code at 1 tokens"):
        run(captured, transform(captured.graph, drop))


class Mixer(torch.nn.Module):
    """Adds the mean over all tokens: every row depends on every token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.mean(1, keepdim=True)


class Mixing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.mixer = Mixer()

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.mixer(self.table(input_ids)) * position_ids[..., None])


def test_mixing_tokens_is_refused_by_module(capture: Capture) -> None:
    with pytest.raises(UntraceableError, match=r"module 'mixer' mixes tokens outside attention \(aten\.mean"):
        run(capture(Mixing()))


def test_ignoring_positions_is_refused(capture: Capture) -> None:
    with pytest.raises(UntraceableError, match="does not depend on position_ids"):
        run(capture(lambda m, x, p: torch.nn.functional.linear(x, m.w)))


def test_local_attention_keeps_the_interface(save_tiny: SaveTiny) -> None:
    graph = trace(load_source(str(save_tiny("gemma3_text")))).graph
    local = with_local_attention(graph)
    assert not any(node.op == "attn.attention" for node in local.nodes)
    assert [v.type for v in local.outputs] == [v.type for v in graph.outputs]
    assert local.weights().keys() == graph.weights().keys()


def test_damaged_weights_are_a_warning(save_tiny: SaveTiny, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(save_tiny("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    source = load_source(str(folder))
    with pytest.warns(WeightWarning) as warned:
        check_trace(trace(source), source)
    text = " / ".join(str(w.message) for w in warned)
    assert "'model.norm.weight'" in text
    assert "logits are not finite" in text
