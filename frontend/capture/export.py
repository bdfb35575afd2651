"""Trace a Hugging Face model into an exported program over a symbolic number of tokens.

The wrapper calls the model as one sequence with explicit positions and no cache. Attention and masks appear as
marker ops (`hooks`), so what is left is token-local. A trace that holds only for some token counts is refused.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import torch

from inferir.frontend.capture import hooks
from inferir.frontend.capture.rope import sequence_lengths
from inferir.frontend.capture.trace_failures import explain, explain_sizes
from inferir.frontend.checkpoint.huggingface import quiet
from inferir.ir.errors import UntraceableError

TRACED_TOKENS = 17  # an arbitrary count that no model dimension is likely to equal
MAX_TOKENS = 1 << 20
PREFIX = "model."  # of every name in the exported program, from the wrapper's attribute


class Wrapper(torch.nn.Module):
    """ids [T], positions [T] (and the length of every token's sequence [T]) -> logits [T, V] of every row."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        with sequence_lengths(lengths):
            out = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        logits = out.logits[0]
        assert isinstance(logits, torch.Tensor)
        return logits


@dataclass(frozen=True)
class Exported:
    """A functional program of ATen and marker ops, and the symbol that stands for the number of tokens."""

    program: Any
    symbol: Any


def export(model: Any, with_lengths: bool = False) -> Exported:
    """Trace `model`, which was built with our attention implementation, for 2 … `MAX_TOKENS` tokens.

    with_lengths: add the input `lengths` (see `rope`). Parameter values are never read. Raises `UntraceableError`
    naming module, operator and source line.
    """
    hooks.register()
    try:
        with quiet(), torch.no_grad():
            program = _export(model, with_lengths)
            if not _is_functional(program):
                program = program.run_decompositions({})
    except Exception as error:  # torch.export raises errors of many kinds
        if "Constraints violated" in str(error):
            with quiet(), torch.no_grad():
                raise explain_sizes(error, model, lambda: _export(model, with_lengths)) from error
        raise explain(error, model) from error
    size = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == "ids").meta["val"].shape[0]
    if isinstance(size, int):
        raise UntraceableError(
            f"the trace is specialised to {size} tokens; the model's code fixes the number of tokens"
        )
    _check_ranges(program, size.node.expr)
    return Exported(program, size.node.expr)


def _export(model: Any, with_lengths: bool) -> Any:
    count = torch.export.Dim("tokens", min=2, max=MAX_TOKENS)
    ids = torch.zeros(TRACED_TOKENS, dtype=torch.int64)
    positions = torch.arange(TRACED_TOKENS)
    inputs = {"ids": ids, "positions": positions}
    if with_lengths:
        inputs["lengths"] = torch.full_like(positions, TRACED_TOKENS)
    shapes = {name: {0: count} for name in inputs}
    with contextlib.redirect_stderr(io.StringIO()):  # torch prints the partial program when it fails
        return torch.export.export(Wrapper(model), (), kwargs=inputs, dynamic_shapes=shapes, strict=False)


def _is_functional(program: Any) -> bool:
    """Whether no op writes to its operands, so that functionalisation would change nothing."""
    schemas = (getattr(n.target, "_schema", None) for n in program.graph.nodes if n.op == "call_function")
    return not list(program.graph_module.children()) and not any(s is not None and s.is_mutable for s in schemas)


def _check_ranges(program: Any, symbol: Any) -> None:
    """Refuse a program that holds only for some sizes; torch would check that at run time, an importer must do it
    here.
    """
    allowed = program.range_constraints.get(symbol)
    if allowed is not None and (allowed.lower > 2 or allowed.upper < MAX_TOKENS):
        raise UntraceableError(
            f"the trace holds for {allowed.lower} to {allowed.upper} tokens only; "
            "the model's code depends on the number of tokens"
        )
    sizes = [f"L['{name}'].size()[0]" for name in ("ids", "positions", "lengths")]
    same = {f"{a} == {b}" for a in sizes for b in sizes}
    for guard in getattr(program, "_guards_code", None) or ():
        if guard.split(" or ")[0] not in same:
            raise UntraceableError(f"the trace is guarded by a condition on sizes: {guard}")
    for node in program.graph.nodes:
        if node.op == "call_module":
            raise UntraceableError(f"the trace keeps a call to the submodule {node.target}")
        if node.op == "call_function" and str(node.target).startswith(("aten._assert_scalar", "aten.sym_constrain")):
            raise UntraceableError(f"the trace is guarded by a condition on sizes: {node.target}{node.args}")
