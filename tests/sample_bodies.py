"""Draws from rows of logits, with every operand neutral but those that a test gives."""

import torch

from inferir.ir.contract.step_inputs import SAMPLE_INPUTS
from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.sample import operand_types
from inferir.testing.row_cases import Case


def sample_operands(rows: int, vocab: int) -> dict[str, torch.Tensor]:
    """Operands of `sample.draw` that draw greedily, without mask, filters and edits."""
    words = (vocab + 31) // 32
    sizes = {"R": rows, "E": 1, "words": words}
    return {
        i.name: torch.full([sizes[d] for d in i.dims], i.name == "top_p", dtype=torch_dtype(i.dtype))
        for i in SAMPLE_INPUTS
    }


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
