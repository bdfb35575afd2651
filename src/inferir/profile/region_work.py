"""What a region of the kernel graph has to move and compute in a step: its lower bound, whatever the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import sympy

from inferir.ir.contract.symbols import StepCounts
from inferir.ir.graph.dims import A, G, R, S, T
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType
from inferir.profile.machine_limits import MachineLimits


@dataclass(frozen=True)
class Work:
    """Bytes of weights and of cached keys and values that are read, bytes of keys and values that are written, bytes of
    activations, and floating-point operations. Two on bytes count as one, since an instruction does twice as many.
    """

    weights: int = 0
    kv_read: int = 0
    kv_written: int = 0
    activations: int = 0
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def memory(self) -> int:
        """Bytes that come from memory: no cache holds them from step to step."""
        return self.weights + self.kv_read

    @property
    def moved(self) -> int:
        """All bytes."""
        return self.memory + self.kv_written + self.activations

    def times(self, limits: MachineLimits) -> dict[str, float]:
        """The least seconds that each limit allows, by its name. What was just written is read from the cache."""
        return {
            "memory": self.memory / limits.memory,
            "cache": (self.kv_written + self.activations) / limits.cache,
            "compute": self.flops / limits.flops,
        }

    def seconds(self, limits: MachineLimits) -> float:
        """The least time it can take: the largest of the three, as if they overlapped without loss."""
        return max(self.times(limits).values())

    def bound(self, limits: MachineLimits) -> str:
        """Which of the three that is."""
        times = self.times(limits)
        return max(times, key=lambda name: times[name])


def region_work(region: Node, counts: StepCounts, items: Mapping[str, npt.NDArray[np.int32]]) -> Work:
    """`items` are the attention work items [A, 6] of the step (`inferir.ir.contract.split_kv`), by their step input."""
    sizes = {T: counts.tokens, S: counts.seqs, R: counts.rows, A: counts.items, G: counts.argmax}
    body: Graph = region.attrs["body"]
    ops = {n.op: n for n in body.nodes}
    if "attn.paged" in ops:
        attention = ops["attn.paged"]
        of = region.operands[body.inputs.index(attention.operands[4])]
        return _attention(attention, counts, items[of.node.attrs["name"]])
    made = [_bytes(v.type, sizes) for v in region.results if not _is_cache(v.type)]
    if made and not any(made):
        return Work()  # no such rows in this step
    activations = sum(made)
    for outer, inner in zip(region.operands, body.inputs, strict=True):
        if not opdef(outer.op).source:
            activations += _read(inner, body, sizes)
    product = ops.get("tensor.linear_packed") or ops.get("sample.argmax")
    written = sum(_bytes(n.operands[1].type, sizes) for n in body.nodes if n.op == "kv.write")
    if product is None:
        return Work(kv_written=written, activations=activations)
    rows, k = (_size(d, sizes) for d in product.operands[0].type.shape)
    # An arg-max reads its weights as bytes, with bounds; what it then reads of the weights depends on the row.
    read = product.operands[2:4] if product.op == "sample.argmax" else product.operands[1:]
    weights = sum(_bytes(v.type, sizes) for v in read)
    flops = (1 if product.op == "sample.argmax" else 2) * rows * k * int(product.attrs["n"])
    return Work(weights, 0, written, activations, flops)


def does_the_work(kernel: str) -> bool:
    """Whether a kernel has its region's work, of those that compute the region one after another."""
    return not kernel.endswith(("_merge", "_prepare", "_floor", "_rescore", "_pick"))


def _attention(node: Node, counts: StepCounts, items: npt.NDArray[np.int32]) -> Work:
    """Each sequence's visible keys and values once; two products per (token, visible position)."""
    q, cache = node.operands[0].type, node.operands[2].type
    heads, dim, v_dim = (int(d) for d in (q.shape[1], q.shape[2], cache.shape[3]))
    first_read = node.attrs["reads"].first
    pairs = 0
    seen: dict[int, tuple[int, int]] = {}
    for seq, _, tokens, start, split, _ in items[: counts.items].tolist():
        if split > 0:  # the item of the first split stands for all
            continue
        position = np.arange(start, start + tokens)
        pairs += int((position + 1 - np.maximum(0, first_read(position))).sum())
        end, first = seen.get(seq, (0, start))
        seen[seq] = (max(end, start + tokens), min(first, start))
    visible = sum(end - max(0, first_read(first)) for end, first in seen.values())
    size = q.dtype.itemsize
    kv = visible * int(node.attrs["kv_heads"]) * (dim + v_dim) * size
    activations = counts.tokens * heads * (dim + v_dim) * size
    return Work(kv_read=kv, activations=activations, flops=2 * pairs * heads * (dim + v_dim))


def _read(value: Value, body: Graph, sizes: Mapping[sympy.Expr, int]) -> int:
    """Bytes that are read of an input of `body`: the rows that are gathered, if nothing else is done with it."""
    users = [n for n in body.nodes if value in n.operands]
    if users and all(n.op == "tensor.gather_rows" and n.operands[0] is value for n in users):
        return sum(_bytes(n.results[0].type, sizes) for n in users)
    return _bytes(value.type, sizes)


def _is_cache(type: TensorType) -> bool:
    return type.rank == 5


def _bytes(type: TensorType, sizes: Mapping[sympy.Expr, int]) -> int:
    return prod(_size(d, sizes) for d in type.shape) * type.dtype.itemsize


def _size(dim: object, sizes: Mapping[sympy.Expr, int]) -> int:
    return dim if isinstance(dim, int) else sizes[dim]


def regions_by_digest(graph: Graph) -> dict[str, Node]:
    """The first region of every digest in a kernel graph."""
    from inferir.codegen.library import distinct

    return distinct(n for n in graph.nodes if n.op == "kernel.region")
