"""How far the results of a region's kernels may be from those of the reference interpreter on the same operands.

Kernels add in another order than torch, and round elsewhere. What that may do to a result is measured: the region is
interpreted again on operands that are off by what rounding alone leaves of them, a share of `amplitude` each at most.

number     |found - expected| <= NOISE * n + ULPS * e * |expected| + ROW * amplitude * rms, where n is the median over
           a row of what those operands move it, e the machine epsilon of the result's type, and rms that of the row
integer    equal, or where the moved operands give another one, too: two logits that are as good as equal
cache      like numbers at the slots that the step writes; the same bits everywhere else
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.interpreter import run_body
from inferir.ir.graph.registry import opdef
from inferir.verify.findings import Worst

NOISE = 8.0
ULPS = 4.0
ROW = 2.0
MOVED = 2
_WIDE = 8  # values of a row from which on their median says something

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Deviation:
    """The worst element of a region's results: `excess` is its difference in units of its bound."""

    excess: float
    worst: Worst | None

    @property
    def passed(self) -> bool:
        return self.excess <= 1.0


@dataclass(frozen=True)
class Expected:
    """What the interpreter makes of a region's operands. fixed: which of them are weights, which are exact."""

    body: Graph
    operands: Tensors
    fixed: Sequence[bool]
    results: Tensors

    @staticmethod
    def of(body: Graph, operands: Tensors, fixed: Sequence[bool]) -> Expected:
        with torch.no_grad():
            return Expected(body, operands, fixed, run_body(body, operands))

    def deviation(self, found: Tensors) -> Deviation:
        """How far `found` is from what is expected. Operands are moved only if the rest of the bound does not do."""
        share = amplitude(self.body, self.operands)
        near = self._deviation(found, [], share)
        if near.passed:
            return near
        with torch.no_grad():
            moved = [run_body(self.body, _moved(self.operands, self.fixed, share, seed)) for seed in range(MOVED)]
        return self._deviation(found, moved, share)

    def _deviation(self, found: Tensors, moved: Sequence[Tensors], share: float) -> Deviation:
        worst = Deviation(0.0, None)
        for index, (want, have) in enumerate(zip(self.results, found, strict=True)):
            others = [m[index] for m in moved]
            name = f"result {index}"
            rows = _written(self.body.outputs[index].node, self.body, self.operands)
            if rows is not None:
                each = _cache_deviation(name, want, have, others, rows, share)
            elif want.is_floating_point():
                each = _numbers(name, want, have, others, share)
            else:
                each = _integers(name, want, have, others)
            if not each.excess <= worst.excess:
                worst = each
        return worst


def amplitude(body: Graph, operands: Tensors) -> float:
    """The share of an operand that rounding may cost: its type's epsilon, or that of float32 for as many terms as the
    longest sum of the region has, whose roundings add up like a random walk.
    """
    floats = [t for t in operands if t.is_floating_point()]
    terms = max((_terms(n) for n in body.nodes), default=1)
    own = max((torch.finfo(t.dtype).eps for t in floats if t.dtype is not torch.float64), default=0.0)
    return max(own, torch.finfo(torch.float32).eps * math.sqrt(terms))


def _terms(node: Node) -> int:
    """How many numbers a node adds at most."""
    if opdef(node.op).source or not node.operands:
        return 1
    last = [d for v in node.operands for d in v.type.shape[-1:] if isinstance(d, int)]
    return max(last, default=1)


def _moved(operands: Tensors, fixed: Sequence[bool], share: float, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = []
    for tensor, as_it_is in zip(operands, fixed, strict=True):
        if as_it_is or not tensor.is_floating_point():
            out.append(tensor)
            continue
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
        out.append((tensor.double() * (1 + share * noise)).to(tensor.dtype))
    return out


def _numbers(name: str, want: torch.Tensor, have: torch.Tensor, moved: Tensors, share: float) -> Deviation:
    a, b = want.double(), have.double()
    epsilon = torch.finfo(want.dtype).eps
    noise = torch.zeros_like(a)
    for other in moved:
        noise = torch.maximum(noise, _typical((other.double() - a).abs()))
    rms = a.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).pow(2).mean(-1, keepdim=True).sqrt()
    bound = NOISE * noise + ULPS * epsilon * a.abs() + ROW * max(epsilon, share) * rms
    delta = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    delta = torch.where(delta.isfinite() | a.isnan(), delta, math.inf).nan_to_num(nan=math.inf)
    excess = torch.where(delta == 0, 0.0, delta / bound.nan_to_num(nan=0.0).clamp_min(torch.finfo(want.dtype).tiny))
    return _worst(name, excess, a, b, bound)


def _typical(delta: torch.Tensor) -> torch.Tensor:
    """The median of every row of values that differ at all, or of everything where rows are short."""
    delta = delta.nan_to_num(nan=0.0, posinf=0.0)
    if delta.dim() > 1 and delta.shape[-1] >= _WIDE:
        return delta.median(-1, keepdim=True).values.expand(delta.shape)
    return delta.median().expand(delta.shape) if delta.numel() else delta


def _integers(name: str, want: torch.Tensor, have: torch.Tensor, moved: Tensors) -> Deviation:
    wrong = want != have
    for other in moved:
        wrong &= want == other
    return _worst(name, torch.where(wrong, math.inf, 0.0), want.double(), have.double(), None)


Rows = Callable[[torch.Tensor], torch.Tensor]


def _written(node: Node, body: Graph, operands: Tensors) -> Rows | None:
    """For the result of a write to a cache: what takes the rows [T, features] that were written out of it."""
    if node.op != "kv.write":
        return None
    slots = operands[body.inputs.index(node.operands[2])].long()
    size, role = int(node.attrs["block_size"]), node.attrs["role"]
    block, offset = slots // size, slots % size

    def rows(cache: torch.Tensor) -> torch.Tensor:
        pack = cache.shape[-1]
        if role == "k":
            return cache[block, :, :, offset, :].reshape(len(slots), -1)
        return cache[block, :, offset // pack, :, offset % pack].reshape(len(slots), -1)

    return rows


def _cache_deviation(
    name: str, want: torch.Tensor, have: torch.Tensor, moved: Tensors, rows: Rows, share: float
) -> Deviation:
    written = _numbers(f"{name} at the written slots", rows(want), rows(have), [rows(m) for m in moved], share)
    mask = torch.ones(want.numel(), dtype=torch.bool)
    mask[rows(torch.arange(want.numel()).reshape(want.shape)).reshape(-1)] = False
    a, b = want.reshape(-1).double(), have.reshape(-1).double()
    touched = mask & (a != b) & ~(a.isnan() & b.isnan())
    if not bool(touched.any()):
        return written
    excess = torch.where(touched, math.inf, 0.0).reshape(want.shape)
    return _worst(f"{name} at a slot of no token of the step", excess, want.double(), have.double(), None)


def _worst(
    name: str, excess: torch.Tensor, want: torch.Tensor, have: torch.Tensor, bound: torch.Tensor | None
) -> Deviation:
    if not excess.numel():
        return Deviation(0.0, None)
    place = int(excess.reshape(-1).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), excess.shape))
    limit = None if bound is None else float(bound[index])
    return Deviation(float(excess[index]), Worst(name, index, float(want[index]), float(have[index]), limit))
