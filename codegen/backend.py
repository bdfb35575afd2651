"""The protocol every code generator implements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import KernelArg
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Node


@dataclass(frozen=True)
class KernelSource:
    """One region in the backend's own language.

    name: the kernel's symbol; text: its source; args: what each pointer parameter stands for; params:
    (name, element type) of the pointer parameters; tile: the choices made, for
    people and manifests; grid: for kernels that the caller launches, the number of programs along each grid axis, as
    dimensions in the run-time counts (`ir.dims`).
    """

    name: str
    text: str
    args: tuple[KernelArg, ...]
    params: tuple[tuple[str, str], ...]
    tile: Mapping[str, int] = field(default_factory=dict)
    grid: tuple[str, ...] = ()


class Backend(Protocol):
    """Lowers `kernel.region` nodes. `lower` may be called for what `supports` accepts."""

    @property
    def name(self) -> str: ...

    def supports(self, region: Node, bucket: Bucket, target: Target) -> str | None:
        """None if the region can be lowered, else the reason why not."""
        ...

    def lower(self, name: str, region: Node, bucket: Bucket, target: Target) -> KernelSource:
        """The region as source text. Raises `CodegenError` for a region that `supports` refuses."""
        ...

    def build(self, kernel: KernelSource, bucket: Bucket, target: Target) -> bytes:
        """Compile one kernel for `target`, which need not be present. Raises `CodegenError`."""
        ...
