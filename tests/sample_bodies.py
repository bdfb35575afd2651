"""Draws from rows of logits, with every operand neutral but those that a test gives."""

import torch

from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.sample import operand_types
from inferir.testing.row_cases import Case
from inferir.testing.steps import sample_operands


def sample_case(logits: torch.Tensor, valid: int | None = None, **operands: torch.Tensor) -> Case:
    """A draw from `logits` with some operands given, the others neutral."""
    rows, vocab = logits.shape
    given = {"logits": logits, **(sample_operands(rows, vocab) | operands)}
    b = Builder()
    type_ = TensorType((R, vocab), DType.F32)
    inputs = [b.input(n, t) for n, t in {"logits": type_, **operand_types(type_)}.items()]
    return Case(Graph(tuple(inputs), (b.op("sample.draw", *inputs, valid=valid or vocab),)), list(given.values()), rows)


def draw(rows: int = 24, vocab: int = 1000, valid: int = 997) -> Case:
    logits = torch.randn(rows, vocab) * 3
    logits[:, valid:] = 1e4
    return sample_case(
        logits,
        valid,
        temperature=torch.rand(rows) * 2 * (torch.arange(rows) % 3 > 0),
        seed=torch.randint(-(2**31), 2**31 - 1, (rows,)).int(),
        counter=torch.randint(0, 1000, (rows,)).int(),
    )
