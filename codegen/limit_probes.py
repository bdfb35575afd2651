"""What a profile asks of a backend: kernels that show what the machine can do, since they do nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inferir.codegen.backend import Backend
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType


@dataclass(frozen=True)
class LimitModule:
    """A module of two kernels with the parameters x and out, and with timed workers (`inferir.ir.contract.abi.CLAIMS`).
    The number of tasks is the count T.

    Kernel `STREAM` reads `task_bytes` of x per task, as often as the count S says, and leaves 256 bytes of out. Kernel
    `DOTS` does `task_flops` floating-point operations of dot products on registers per task, and leaves `out_bytes`.
    `row_words` and `scratch_bytes` are what the step driver needs to know.
    """

    source: str
    task_bytes: int
    task_flops: int
    out_bytes: int
    row_words: int
    scratch_bytes: int


STREAM, DOTS = 0, 1
STREAM_OUT = 256


class LimitProbes(Protocol):
    """A backend's kernels that measure a machine."""

    def module(self, dtype: DType, target: Target) -> LimitModule:
        """The kernels with dot products of `dtype`, by the instructions that `target` has."""


def limit_probes_of(backend: Backend) -> LimitProbes:
    """The probes of a backend, which has them as its attribute `limit_probes`. Raises `CodegenError` if it has none."""
    found: LimitProbes | None = getattr(backend, "limit_probes", None)
    if found is None:
        raise CodegenError(f"the {backend.name} backend cannot measure what a machine can do")
    return found
