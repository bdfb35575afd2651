"""Facts on op definitions against what the reference implementations do, for every op that a step may run.

In the examples an axis of size 7 is the rows of a step; what has no such first axis is the same for all rows.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from inferir.ir.contract.kv_reads import FullAttention
from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, from_torch
from inferir.ir.graph.registry import OpDef, all_ops, infer_types, opdef
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_blocks import to_blocks

ROWS = 7
torch.set_num_threads(1)
_seeds = iter(range(10**6))


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(next(_seeds)))


def ints(high: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(next(_seeds))
    return torch.randint(0, high, shape, generator=generator, dtype=torch.int32)


def bools() -> torch.Tensor:
    return rand(ROWS, 6) > 0


X = (ROWS, 6)
ATTENTION = {"scale": 1.0, "layer": 0}
ITEMS = torch.tensor([[0, 0, ROWS, 0, -1, 0]], dtype=torch.int32)
EXAMPLES: dict[str, tuple[Callable[[], tuple[torch.Tensor, ...]], dict[str, Any]]] = {
    "tensor.gelu": (lambda: (rand(*X),), {"approximate": "none"}),
    "tensor.cast": (lambda: (rand(*X),), {"dtype": DType.BF16}),
    "tensor.logical_not": (lambda: (bools(),), {}),
    "tensor.logical_and": (lambda: (bools(), bools()), {}),
    "tensor.logical_or": (lambda: (bools(), bools()), {}),
    "tensor.where": (lambda: (bools(), rand(*X), rand(*X)), {}),
    "tensor.argmax": (lambda: (rand(*X),), {"dim": -1, "keepdim": False}),
    "tensor.softmax": (lambda: (rand(*X),), {"dim": -1}),
    **{
        f"tensor.{name}": (lambda: (rand(*X),), {"dims": (-1,), "keepdim": False})
        for name in ("sum", "mean", "max", "min")
    },
    "tensor.view": (lambda: (rand(*X),), {"shape": (ROWS, 2, 3)}),
    "tensor.permute": (lambda: (rand(ROWS, 2, 3),), {"perm": (0, 2, 1)}),
    "tensor.expand": (lambda: (rand(ROWS, 1),), {"shape": (ROWS, 5)}),
    "tensor.slice": (lambda: (rand(*X),), {"dim": 1, "start": 1, "stop": 4, "step": 1}),
    "tensor.cat": (lambda: (rand(*X), rand(*X)), {"dim": 1}),
    "tensor.linear": (lambda: (rand(*X), rand(6, 6)), {}),
    "tensor.matmul": (lambda: (rand(ROWS, 6, 6), rand(ROWS, 6, 6)), {}),
    "tensor.linear_packed": (
        lambda: (rand(ROWS, 64), to_blocks(rand(64, 64), 1)),
        {"n": 64, "format": "panels", "interleave": 1, "dtype": None},
    ),
    "tensor.embedding": (lambda: (rand(9, 6), ints(9, ROWS)), {}),
    "tensor.gather_rows": (lambda: (rand(9, 6), ints(9, ROWS)), {}),
    "nn.rms_norm": (lambda: (rand(*X), rand(6)), {"eps": 1e-5, "offset": 0.0, "round_before_weight": True}),
    "nn.layer_norm": (lambda: (rand(*X), rand(6), rand(6)), {"eps": 1e-5}),
    "nn.rotary": (lambda: (rand(ROWS, 2, 6), rand(ROWS, 6), rand(ROWS, 6)), {"style": "half"}),
    "nn.gated_act": (lambda: (rand(*X), rand(*X)), {"kind": "silu"}),
    "nn.softcap": (lambda: (rand(*X),), {"cap": 2.0}),
    "attn.attention": (
        lambda: (rand(ROWS, 2, 6), rand(ROWS, 2, 6), rand(ROWS, 2, 6)),
        {**ATTENTION, "reads": FullAttention(), "softcap": 0.0, "causal": True},
    ),
    "attn.paged": (
        lambda: (rand(ROWS, 2, 6), rand(3, 2, 6, 8, 1), rand(3, 2, 8, 6, 1), ints(3, 1, 1), ITEMS),
        {**ATTENTION, "reads": FullAttention(), "softcap": 0.0, "kv_heads": 2, "block_size": 8},
    ),
    "kv.write": (
        lambda: (rand(3, 2, 6, 8, 1), rand(ROWS, 2, 6), torch.randperm(24, dtype=torch.int32)[:ROWS]),
        {"role": "k", "block_size": 8},
    ),
}
for name, op in all_ops().items():
    if name.startswith("tensor.") and isinstance(op.arity, int) and op.arity and not op.attrs:
        EXAMPLES.setdefault(name, (lambda count=op.arity: tuple(rand(*X) for _ in range(count)), {}))
NOT_HERE = {
    "tensor.arange": "no operands",
    "tensor.full": "no operands",
    "sample.draw": "its rows are measured in test_sample.py",
    "sample.argmax": "a product and an arg-max, measured in test_sample.py",
}
OPS = sorted(EXAMPLES)


def apply(op: OpDef, tensors: tuple[Any, ...]) -> torch.Tensor:
    assert op.evaluate is not None
    out = op.evaluate(Attrs(EXAMPLES[op.name][1]), *tensors)
    assert isinstance(out, torch.Tensor)
    return out


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two results are the same, NaN included."""
    return (a == b) | (a.isnan() & b.isnan())


def other(tensor: torch.Tensor) -> torch.Tensor:
    """Different numbers of the same type in every place."""
    if tensor.dtype == torch.bool:
        return ~tensor
    return tensor + 1 if tensor.is_floating_point() else tensor


def test_every_op_that_a_step_runs_is_measured() -> None:
    ran = {
        name
        for name, op in all_ops().items()
        if not op.source and name.split(".")[0] not in ("core", "layout", "kernel")
    }
    assert set(EXAMPLES) | set(NOT_HERE) == ran


@pytest.mark.parametrize("name", OPS)
def test_elementwise(name: str) -> None:
    operands = EXAMPLES[name][0]()
    before = apply(opdef(name), operands)
    local = all(t.shape == before.shape for t in operands)
    for i, tensor in enumerate(operands if local else ()):
        for place in (0, 17):
            moved = tensor.clone()
            moved.view(-1)[place] = other(tensor).view(-1)[place]
            changed = ~same(before, apply(opdef(name), (*operands[:i], moved, *operands[i + 1 :]))).flatten()
            changed[place] = False
            local &= not changed.any()
    assert opdef(name).elementwise == local


@pytest.mark.parametrize("name", OPS)
def test_commutative(name: str) -> None:
    operands = EXAMPLES[name][0]()
    if len(operands) == 2 and operands[0].shape == operands[1].shape and operands[0].dtype == operands[1].dtype:
        operands[1][0] = operands[0][0]  # where both are equal, too
        there, back = apply(opdef(name), operands), apply(opdef(name), operands[::-1])
        measured = there.shape == back.shape and bool(same(there, back).all())
    else:
        measured = False
    assert opdef(name).commutative == measured


@pytest.mark.parametrize("name", [n for n in OPS if opdef(n).elementwise and n != "tensor.where"])
def test_logical(name: str) -> None:
    numbers = [rand(*X) * (rand(*X) > 0) for _ in EXAMPLES[name][0]()]
    truths = [(x != 0).float() for x in numbers]
    there, back = apply(opdef(name), tuple(numbers)), apply(opdef(name), tuple(truths))
    assert opdef(name).logical == bool(same(there, back).all())


@pytest.mark.parametrize("name", OPS)
def test_unit(name: str) -> None:
    op, (x, *rest) = opdef(name), EXAMPLES[name][0]()
    found = None
    if op.elementwise and len(rest) == 1 and x.is_floating_point() and name.startswith("tensor."):
        found = next((e for e in (0.0, 1.0) if torch.equal(apply(op, (x, e)), x)), None)
    assert op.unit == found
    if found is not None and op.commutative:
        assert torch.equal(apply(op, (found, x)), x)


@pytest.mark.parametrize("name", OPS)
def test_views_lookups_and_moves(name: str) -> None:
    """Moving elements commutes with renaming them, however wild; a view has one operand, a lookup rows of a table."""
    op, operands = opdef(name), EXAMPLES[name][0]()
    tables = [t for t in operands if t.is_floating_point()]
    values = torch.cat([t.flatten() for t in tables] or [rand(1)]).unique()
    images = rand(len(values))

    def renamed(t: torch.Tensor) -> torch.Tensor:
        return images[torch.searchsorted(values, t.contiguous())] if t.is_floating_point() else t

    before = apply(op, operands)
    known = before.dtype == torch.float32 and bool(torch.isin(before, values).all())
    moves = known and op.stores is None and torch.equal(renamed(before), apply(op, tuple(map(renamed, operands))))
    selects = moves and any(t.dtype == torch.bool for t in operands)  # chooses by value, element by element
    assert op.moves == (moves and not selects)
    assert op.view == (op.moves and len(operands) == 1)
    is_rows = len(operands) == 2 and operands[1].dtype == torch.int32
    assert op.lookup == (is_rows and torch.equal(before, operands[0][operands[1].long()]))


@pytest.mark.parametrize("name", OPS)
def test_rows_that_mix(name: str) -> None:
    op, operands = opdef(name), EXAMPLES[name][0]()
    before = apply(op, operands)
    turned = apply(op, tuple(t.flip(0) if t.shape[0] == ROWS else t for t in operands))
    mixes = before.shape[0] != ROWS or not torch.allclose(turned.flip(0), before, equal_nan=True)
    for i, tensor in enumerate(operands):
        if tensor.shape[0] == ROWS and not mixes:
            moved = tensor.clone()
            moved[2] = other(tensor)[2]
            changed = ~same(before, apply(op, (*operands[:i], moved, *operands[i + 1 :])))
            changed[2] = False
            mixes |= bool(changed.any())
    assert op.mixes_rows == mixes


@pytest.mark.parametrize("name", OPS)
def test_products_reductions_and_the_last_axis(name: str) -> None:
    op, operands = opdef(name), EXAMPLES[name][0]()
    before, floats = apply(op, operands), all(t.is_floating_point() for t in operands)
    bilinear = len(operands) == 2 and floats and before.dtype == torch.float32
    if bilinear:
        x, y = operands
        doubled = [apply(op, (2 * x, y)), apply(op, (x, 2 * y))]
        bilinear = all(torch.allclose(d, 2 * before) for d in doubled)
    assert op.contraction == (bilinear and not op.elementwise)
    assert op.reduction == (op.axes is not None and not op.moves)
    shared = [t.shape[0] != ROWS for t in operands[1:]]
    row_by_row = all(shared) and not op.mixes_rows and not op.elementwise and not op.moves and op.axes is None
    assert op.last_axis == row_by_row


@pytest.mark.parametrize("name", [n for n in OPS if n.startswith("nn.")])
def test_operands_of_another_float_type(name: str) -> None:
    op, operands = opdef(name), EXAMPLES[name][0]()
    half, full = DType.BF16, DType.F32
    types = [TensorType(tuple(t.shape), half if i == 0 else full) for i, t in enumerate(operands)]
    try:
        infer_types(op, types, Attrs(EXAMPLES[name][1]))
        accepted = len(types) > 1
    except IRError:
        accepted = False
    assert op.converts_from == (1 if accepted else None)


@pytest.mark.parametrize("name", OPS)
def test_numbers_that_keep_their_precision(name: str) -> None:
    """0.1 beside bf16, as it is and as bf16 holds it: where the results differ, the reference tells which it took."""
    op, x = opdef(name), torch.linspace(0.5, 2, 999).bfloat16()
    if not (name.startswith("tensor.") and op.elementwise and op.arity == 2) or op.logical:
        assert not op.exact_numbers
        return
    half = float(torch.tensor(0.1).bfloat16())
    for position in range(2):
        given, exact, rounded = (
            apply(op, (t, n) if position else (n, t)).to(torch.bfloat16)
            for t, n in ((x, 0.1), (x.float(), 0.1), (x.float(), half))
        )
        differ = exact != rounded
        if differ.any():
            assert torch.equal(given, exact if position in op.exact_numbers else rounded), position
        else:
            assert position not in op.exact_numbers


def test_conditions_are_bool_whatever_the_others_are() -> None:
    c, x = torch.tensor([True, False]), torch.tensor([1.0, 2.0])
    assert [name for name in OPS if opdef(name).conditions] == ["tensor.where"]
    assert apply(opdef("tensor.where"), (c, x, -x)).tolist() == [1, -2]


@pytest.mark.parametrize("name", OPS)
def test_what_lies_in_memory(name: str) -> None:
    """A kernel of its own reads its operands whole; a table and a cache are read or written by index."""
    op, operands = opdef(name), EXAMPLES[name][0]()
    first = operands[: op.in_memory]
    if op.anchor:
        assert len(first) == len(operands)
    if op.lookup or op.stores is not None:
        assert len(first) == 1
    if op.stores is not None:
        types = [TensorType(tuple(t.shape), from_torch(t.dtype)) for t in operands]
        assert infer_types(op, types, Attrs(EXAMPLES[name][1])) == (types[0],)


def test_names_of_ops_are_told_apart() -> None:
    """Two ops with one short name would give regions of one name that do different things."""
    short = sorted(op.short for name, op in all_ops().items() if not op.source and name in EXAMPLES)
    twice = {a for a, b in pairwise(short) if a == b}
    assert twice == {"linear", "attention"}  # captured and packed or paged: one of them is gone when regions are made
