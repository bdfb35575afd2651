"""One region as Triton source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferir.ir.contract.kernel_args import KernelArg


@dataclass(frozen=True)
class KernelSource:
    """One kernel.

    name: its symbol; source: the text of a Python module that has it; args: what each pointer parameter stands
    for; params: (name, element type) of the pointer parameters; tile:
    the choices made, for people and manifests; grid: the number of programs along each grid axis, as dimensions in the
    run-time counts (`ir.dims`).
    """

    name: str
    source: str
    args: tuple[KernelArg, ...]
    params: tuple[tuple[str, str], ...]
    tile: Mapping[str, int] = field(default_factory=dict)
    grid: tuple[str, ...] = ()
