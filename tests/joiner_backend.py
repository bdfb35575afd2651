"""A backend that needs no compiler, for tests of what drives backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from small_limits import limits

from inferir.codegen.backend import BucketMeta, BuildJob, Context, LoweredBucket, LoweredKernel
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str


class Joiner:
    """A backend whose modules are its kernels' sources, one per line, and whose libraries are modules in capitals."""

    name = "joiner"
    suffix = ".bin"

    def __init__(self) -> None:
        self.built: list[str] = []

    def key(self, regions: Any, context: Context) -> dict[str, Any]:
        return {"generator": "1"}

    def lower(self, regions: Any, context: Context) -> LoweredBucket:
        names = [f"k{i}_{r.attrs['name']}" for i, r in enumerate(regions.values())]
        records = [
            LoweredKernel(name=n, region=d, anchor="rowwise", params=(), args=(), tile={})
            for n, d in zip(names, regions, strict=True)
        ]
        kernels = tuple(Kernel(n, f"{n} for {context.bucket.name}") for n in names)
        return LoweredBucket(kernels, BucketMeta(kernels=tuple(records)))

    def module(self, kernels: Sequence[Kernel]) -> str:
        return "\n".join(k.source for k in kernels)

    def build(self, jobs: Sequence[BuildJob], workers: int = 1, progress: Any = None) -> list[bytes]:
        self.built += [job.name for job in jobs]
        return [job.source.upper().encode() for job in jobs]


def region(name: str) -> Node:
    b = Builder()
    x = b.input("x", TensorType((T, 8), DType.F32))
    body = Graph((x,), (b.op(f"tensor.{name}", x),))
    return b.node("kernel.region", (b.input("a", x.type),), {"anchor": "rowwise", "body": body, "name": name})


def context(lo: int = 1, hi: int = 2) -> Context:
    return Context(Bucket(lo, hi), Target.named("x86-64-v3"), limits())
