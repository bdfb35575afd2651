"""The inputs that passes add to a graph."""

from __future__ import annotations

from inferir.ir.contract.step_inputs import STEP_INPUTS
from inferir.ir.graph.dims import parse_dim
from inferir.ir.graph.graph import Builder, Value
from inferir.ir.graph.types import TensorType


def step_input(role: str, name: str | None = None) -> Value:
    """A new input of the type that the table of step inputs declares for `role`, which is its name unless it has
    another."""
    declared = STEP_INPUTS[role]
    return Builder().input(name or role, TensorType(tuple(parse_dim(str(d)) for d in declared.dims), declared.dtype))
