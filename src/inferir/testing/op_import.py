"""The import rule of an op: a small function, traced and interpreted, against PyTorch's own result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from inferir.frontend.capture import hooks
from inferir.frontend.capture.export import export
from inferir.frontend.capture.import_program import import_program
from inferir.ir.errors import InferirError
from inferir.ir.graph.interpreter import interpret
from inferir.testing.compare import compare
from inferir.testing.failures import failed
from inferir.testing.op_references import Traced


class Small(torch.nn.Module):
    """A model around a function of (module, x [1, T, 8], positions [1, T]) -> [1, T, …]; parameters w [8, 8], b [8],
    u [6, 8].
    """

    def __init__(self, function: Traced, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))

        self.table = torch.nn.Embedding(50, 8, dtype=dtype)
        self.table.weight = parameter(50, 8)
        self.w, self.b, self.u = parameter(8, 8), parameter(8), parameter(6, 8)
        self.register_buffer("c", torch.linspace(0.1, 0.8, 8), persistent=False)
        self.function = function

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.function(self, self.table(input_ids), position_ids))


def check_import(name: str, function: Traced, tokens: int = 5) -> None:
    """The trace of `function` has the op `name`, and computes what PyTorch does. Raises `CheckFailedError`."""
    hooks.register()
    module = Small(function).eval().requires_grad_(False)
    try:
        imported = import_program(export(module))
    except InferirError as error:
        raise failed(f"{name}: a function that should have it cannot be imported: {error}") from error
    graph = imported.graph
    if not any(n.op == name for n in graph.nodes):
        raise failed(f"{name}: a function that should have it is imported without it", [("captured", graph)], graph)
    ids = torch.arange(tokens, dtype=torch.int32) * 7 % 50
    positions = torch.arange(tokens, dtype=torch.int32) + 1
    given = {"ids": ids, "positions": positions}
    weights = {**dict(module.state_dict()), **imported.constants}
    got = interpret(graph, {n: given[n] for n in graph.input_names}, weights)["logits"]
    with torch.no_grad():
        want = module(ids.long()[None], positions.long()[None], use_cache=False).logits[0].float()
    found = compare(got, want, relative=2e-6, scale=float(want.abs().max()))
    if found is not None:
        raise failed(
            f"{name}: the import rule gives another result than PyTorch: {found}", [("captured", graph)], graph
        )
