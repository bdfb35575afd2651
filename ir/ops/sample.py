"""sample: drawing tokens inside the compiled graph.

The reference below says what a row's token is; kernels agree with it except where float32 rounding decides: a value
within rounding of the min-p threshold, a top-p mass within rounding of p, or two perturbed logits within rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, WORDS, mask_words
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import Dim, E
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.registry import define, infer_types, opdef
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import need
from inferir.ir.weight_format import FORMATS

if TYPE_CHECKING:
    import torch

MASK32 = 0xFFFFFFFF
LOWEST = -3.4028234663852886e38
"""The lowest finite float32: what lies below it, -inf, is never drawn."""


def operand_types(logits: TensorType) -> dict[str, TensorType]:
    """Types of the operands of `sample.draw` after the logits, by name, in order."""
    sizes: dict[int | str, Dim] = {"R": logits.shape[0], WORDS: mask_words(int(logits.shape[1])), "E": E}
    return {i.name: TensorType(tuple(sizes[d] for d in i.dims), i.dtype) for i in SAMPLE_INPUTS}


def _sample_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    logits = types[0]
    need(logits.rank == 2 and logits.dtype is DType.F32, f"logits are {logits}, expected f32 rows")
    wanted = operand_types(logits)
    for (name, want), have in zip(wanted.items(), types[1:], strict=True):
        fits = have.shape == want.shape if want.shape != (E,) else have.rank == 1
        need(fits and have.dtype is want.dtype, f"operand {name} is {have}, expected {want}")
    need(0 < attrs["valid"] <= int(logits.shape[1]), f"valid = {attrs['valid']} of {logits.shape[1]}")
    return TensorType(logits.shape[:1], DType.I32)


def mix32(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser (xor-shift-multiply, constants of Wellons' lowbias32) on int64 tensors holding uint32."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def uniform(seed: torch.Tensor, counter: torch.Tensor, n: int) -> torch.Tensor:
    """[R, n] float32 in (0, 1): a function of (seed, counter, index) alone, so rows do not depend on each other."""
    import torch

    s = seed.to(torch.int64) & MASK32
    c = counter.to(torch.int64) & MASK32
    key = mix32(s ^ mix32((c + 0x9E3779B9) & MASK32))
    bits = mix32(key[:, None] ^ mix32(torch.arange(n)[None].to(torch.int64) + 1))
    return ((bits >> 10).float() + 0.5) * (1.0 / 4194304.0)


def unpack_mask(bitmask: torch.Tensor, n: int) -> torch.Tensor:
    """[R, n] bool from words of 32 bits."""
    import torch

    ids = torch.arange(n)
    return ((bitmask[:, ids // 32] >> (ids % 32)) & 1).bool()


def kept(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Which entries of a row of logits (divided by the temperature) min-p, top-k and top-p leave, as bools.

    min-p keeps what is at least min_p times as likely as the most likely entry (Nguyen et al. 2024). top-k keeps the k
    largest, and everything equal to the k-th; 0 or less, or the whole row, is no limit. top-p keeps, of what is left,
    the most likely entries until their share of the mass reaches p (Holtzman et al. 2020), and everything equal to the
    last of them; 1 is no limit. The largest entry is always kept, -inf never unless the maximum is not finite.
    """
    import torch

    top = row.max()
    if not bool(torch.isfinite(top)):
        return torch.ones_like(row, dtype=torch.bool)
    keep = row >= LOWEST
    if min_p > 0:
        keep &= row >= top + torch.log(torch.tensor(min_p, dtype=torch.float32))
    if 0 < top_k < len(row):
        keep &= row >= row.topk(top_k).values[-1]
    if top_p < 1:
        values, order = row.sort(descending=True, stable=True)
        mass = torch.where(keep, (row - top).exp(), 0.0)[order].double().cumsum(0)
        keep &= row >= values[int((mass < top_p * mass[-1]).sum())]
    return keep


def _edit(rows: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
    """Apply each row's edits in order."""
    import torch

    ids, bias, multiplier, offset = (given[f"edit_{name}"] for name in ("ids", "bias", "multiplier", "offset"))
    for r, (first, n) in enumerate(zip(given["edit_begin"].tolist(), given["edit_count"].tolist(), strict=True)):
        for e in range(first, first + n):
            token = int(ids[e])
            if 0 <= token < rows.shape[1]:
                x = rows[r, token] + bias[e]
                rows[r, token] = torch.where(x > 0, x / multiplier[e], x * multiplier[e]) - offset[e]


def _sample_eval(attrs: Attrs, logits: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    import torch

    given = {i.name: operand for i, operand in zip(SAMPLE_INPUTS, operands, strict=True)}
    n, lowest = attrs["valid"], float("-inf")
    rows = logits[:, :n].clone()
    rows = torch.where((given["masked"] != 0)[:, None] & ~unpack_mask(given["bitmask"], n), lowest, rows)
    _edit(rows, given)
    hot = given["temperature"] > 0
    rows = torch.where(rows.isnan(), lowest, rows)
    scaled = rows / torch.where(hot, given["temperature"], torch.ones(()))[:, None]
    for r in hot.nonzero().flatten().tolist():
        keep = kept(scaled[r], int(given["top_k"][r]), float(given["top_p"][r]), float(given["min_p"][r]))
        scaled[r] = torch.where(keep, scaled[r], lowest)
    noise = -torch.log(-torch.log(uniform(given["seed"], given["counter"], n)))
    scaled = torch.where(hot[:, None], scaled + noise, rows)
    best, token = scaled.max(-1).values, scaled.argmax(-1)
    return torch.where(best == lowest, -1, token).to(torch.int32)


define(
    "sample.draw",
    1 + len(SAMPLE_INPUTS),
    _sample_type,
    _sample_eval,
    attrs={"valid": int},
    doc="One token per row of logits [R, V] among the first `valid` entries. In this order: where `masked` is not "
    "0, entries whose bit in `bitmask` is clear become -inf; edits [edit_begin, edit_begin + edit_count) change "
    "the entry they name, x + bias, then x / multiplier if x > 0 else x * multiplier, then x - offset; if "
    "`temperature` is 0 the first maximum is the token; else x / temperature, min-p, top-k, top-p (see `kept`), "
    "and a draw from the softmax of what is left as arg-max of x + Gumbel noise (Gumbel 1954). The noise is a "
    "function of (seed, counter, index), so a row never depends on others. A row without a drawable "
    "entry (all -inf or NaN) gives -1.",
)


def _argmax_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, w, *quantized = types
    infer_types(opdef("tensor.linear_packed"), (x, w), _product_attrs(attrs))
    weight = TensorType((attrs["n"], x.shape[1]), w.dtype)
    FORMATS.get("int8_rows").check(quantized, weight, valid=attrs["valid"])
    return TensorType(x.shape[:1], DType.I32)


def _product_attrs(attrs: Attrs) -> Attrs:
    return Attrs({"n": attrs["n"], "format": "panels", "interleave": 1, "dtype": DType.F32})


def _argmax_eval(attrs: Attrs, x: torch.Tensor, w: torch.Tensor, *_quantized: torch.Tensor) -> torch.Tensor:
    import torch

    product = opdef("tensor.linear_packed").evaluate
    assert product is not None
    logits = product(_product_attrs(attrs), x, w)
    assert isinstance(logits, torch.Tensor)
    rows = logits[:, : attrs["valid"]]
    rows = torch.where(rows.isnan(), float("-inf"), rows)
    return torch.where(rows.amax(-1) == float("-inf"), -1, rows.argmax(-1)).to(torch.int32)


define(
    "sample.argmax",
    5,
    _argmax_type,
    _argmax_eval,
    attrs={"n": int, "valid": int},
    in_memory=5,
    anchor="argmax",
    doc="Per row of x [G, K] the index of the first maximum among the first `valid` outputs of its float32 product "
    "with a weight of `n` outputs in panels, as `sample.draw` at temperature 0 takes it from logits; -1 if none is "
    "above -inf. The other operands, the same weight in the format int8_rows, let a kernel leave out what cannot "
    "be the maximum; they do not change the result.",
)
