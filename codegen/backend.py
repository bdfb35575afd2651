"""The protocol of code generators: from the regions of a bucket to its library.

    regions ── lower ──→ kernels and their source ── module ──→ one text ── build ──→ library

`inferir.codegen.library` drives the stages, caches what they make, and knows nothing of any backend;
`inferir.codegen.backends` finds the backend of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from inferir.codegen.cache.cache_key import JSON
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import KernelArg
from inferir.ir.contract.manifest import KernelParam
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Node

Progress = Callable[[int, int], None]
"""`progress(built, total)` after each library, possibly from other threads, one at a time."""


@dataclass(frozen=True)
class Context:
    """Everything but the regions that decides the code of a bucket.

    choices: what tuning chose instead of a backend's own choice, by what it chose it for.
    """

    bucket: Bucket
    target: Target
    limits: Limits
    choices: Mapping[Any, Any] = field(default_factory=dict)


class LoweredKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kernel besides its code; `args` says what each of its `params` stands for.

    grid: for kernels that the caller launches, the number of programs along each grid axis, as dimensions in the
    run-time counts (`ir/graph/dims.py`). made_by: the override that its text comes from, and whose it is, or
    "--override" for a file; "" for the backend's own.
    """

    name: str
    region: str
    anchor: str
    params: tuple[KernelParam, ...]
    args: tuple[KernelArg, ...]
    tile: dict[str, int]
    grid: tuple[str, ...] = ()
    made_by: str = ""


class BucketMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a library in dispatch order, what each thread's scratch memory must hold, and what the memory must
    hold that all threads share within a region.
    """

    kernels: tuple[LoweredKernel, ...]
    scratch_bytes: int = 0
    workspace_bytes: int = 0
    attn_tile: int = 1


@dataclass(frozen=True)
class LoweredBucket:
    """Kernels in the backend's own form, frozen dataclasses with at least `name` and `source`, and what they need."""

    kernels: tuple[Any, ...]
    meta: BucketMeta


@dataclass(frozen=True)
class BuildJob:
    """One module to build; `name` is for messages."""

    name: str
    source: str
    target: Target
    kernels: tuple[LoweredKernel, ...] = ()


class Backend(Protocol):
    """Makes the code of whole buckets. `suffix` ends the names of its libraries, such as ".so"."""

    name: str
    suffix: str

    def key(self, regions: Mapping[str, Node], context: Context) -> dict[str, JSON]:
        """What else decides the code of these regions (by digest): generator, tools, choices that apply to them."""

    def lower(self, regions: Mapping[str, Node], context: Context) -> LoweredBucket:
        """Kernels for the regions (by digest), in their order. Raises `CodegenError` naming region and reason."""

    def module(self, kernels: Sequence[Any]) -> str:
        """The text of a library with these kernels. Raises `CodegenError`."""

    def build(self, jobs: Sequence[BuildJob], workers: int = 1, progress: Progress | None = None) -> list[bytes]:
        """The libraries of module texts, in order, in up to `workers` processes. Targets need not be present.

        Raises `CodegenError` naming the job.
        """
