"""Operands of ops as hypothesis draws them: every element by itself, from numbers that are special to its type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.registry import OpDef
from inferir.testing.op_forms import FLOAT, INDEX, NUMBER, Form, Operands, Spec

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

NEAR = (1.0, 0.0, 2.0, -1.0, 0.5, -3.0, 0.1, -0.0, 7.25, 100.0)
"""Numbers that every op takes, the plainest first."""
CANCELLING = frozenset({"tensor.gelu", "nn.gated_act"})
"""Elementwise ops that subtract numbers of nearly the same size, so that only the larger ones say what is near."""


@cache
def special(dtype: DType) -> tuple[float, ...]:
    """Numbers at the ends of a type, and beside and halfway between those that half precision holds."""
    import torch

    kind, half = torch_dtype(dtype), torch.bfloat16
    info = torch.finfo(kind)
    out = [math.inf, -math.inf, math.nan, info.max, -info.max, info.tiny, info.smallest_normal / 4]
    for base in (1.0, -2.5, 0.3):
        low = torch.tensor(base, dtype=half)
        high = torch.nextafter(low, torch.tensor(math.inf, dtype=half))
        out += [low.item(), high.item(), (low.item() + high.item()) / 2]
    return tuple(torch.tensor(out, dtype=kind).double().tolist())


def numbers(op: OpDef, dtype: DType) -> list[float]:
    """What an op is given: anything, unless its result depends on sums or differences of numbers of any size."""
    plain = not (op.elementwise or op.moves) or op.name in CANCELLING
    return [*NEAR, *(() if plain else special(dtype))]


@dataclass(frozen=True)
class OpCase:
    """An op with operands: tensors, or numbers."""

    op: OpDef
    dtype: DType
    specs: Operands
    operands: Sequence[Any]
    attrs: dict[str, Any]


def cases(op: OpDef, forms: Sequence[Form], dtypes: Sequence[DType]) -> SearchStrategy[OpCase]:
    """Cases of an op in any of its forms; they shrink to few elements, which are 1."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw: DrawFn) -> OpCase:
        import torch

        dtype = draw(st.sampled_from(list(dtypes)))
        form = draw(st.sampled_from(list(forms)))
        tokens, width = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        specs, attrs = form(width)
        pool = numbers(op, dtype)

        def operand(spec: Spec) -> Any:
            if spec.kind == NUMBER:
                return spec.value
            type_ = spec.type(dtype)
            shape = type_.concrete({"T": tokens})
            element = {FLOAT: st.sampled_from(pool), INDEX: st.integers(0, max(0, spec.high - 1))}
            each = element.get(spec.kind, st.booleans())
            count = math.prod(shape)
            content = draw(st.lists(each, min_size=count, max_size=count))
            return (
                torch.tensor(content, dtype=torch.float64 if spec.kind == FLOAT else None)
                .to(torch_dtype(type_.dtype))
                .reshape(shape)
            )

        return OpCase(op, dtype, specs, [operand(s) for s in specs], attrs)

    return build()


def dense_case(op: OpDef, form: Form, dtype: DType, tokens: int = 7, width: int = 19) -> OpCase:
    """A case whose tensors have every special number somewhere, for a kernel that is built once. The width fills a
    vector and narrower ones.
    """
    import torch

    specs, attrs = form(width)
    pool = torch.tensor(numbers(op, dtype), dtype=torch.float64)
    generator = torch.Generator().manual_seed(width)

    def operand(spec: Spec) -> Any:
        if spec.kind == NUMBER:
            return spec.value
        type_ = spec.type(dtype)
        shape = type_.concrete({"T": tokens})
        if spec.kind == FLOAT:
            index = torch.randint(len(pool), shape, generator=generator)
            return pool[index].to(torch_dtype(type_.dtype))
        high = max(1, spec.high) if spec.kind == INDEX else 2
        return torch.randint(0, high, shape, generator=generator).to(torch_dtype(type_.dtype))

    return OpCase(op, dtype, specs, [operand(s) for s in specs], attrs)
