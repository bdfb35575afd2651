"""What kernels are lowered for in checks: a target of a kind that this machine can run where it can, small limits."""

from __future__ import annotations

from inferir.codegen.backend import Context
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import TARGETS, Target
from inferir.ir.errors import TargetError
from inferir.testing.stage import KERNEL_OPTIONS


def target_of(kind: str) -> Target:
    """This machine for CPUs; the first known target of other kinds. Raises `TargetError` if there is none."""
    if kind == "cpu":
        return Target.host()
    found = next((t for t in TARGETS.values() if t.kind == kind), None)
    if found is None:
        raise TargetError(f"there is no target of kind {kind!r}; give the check a target")
    return found


def context_for(kind: str, bucket: Bucket) -> Context:
    """A bucket for a target of this kind, with the limits of the graphs that checks run."""
    return Context(bucket, target_of(kind), KERNEL_OPTIONS.limits)
