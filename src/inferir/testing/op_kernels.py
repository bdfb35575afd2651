"""Kernels of regions of one op, on every backend that has them, against the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from inferir.codegen.backend import Backend, Context
from inferir.codegen.backends import BACKENDS
from inferir.codegen.library import region_digest
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import TARGETS
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder
from inferir.ir.graph.registry import ROWWISE, OpDef
from inferir.testing.compare import Difference, compare
from inferir.testing.contexts import context_for
from inferir.testing.failures import CheckFailedError, failed
from inferir.testing.kernel_runs import RegionRun, runner_for
from inferir.testing.op_forms import Form
from inferir.testing.op_rules import difference, graph_of, tensors_of
from inferir.testing.op_values import OpCase, dense_case

if TYPE_CHECKING:
    import torch

EXACT = frozenset(
    {"add", "sub", "mul", "div", "neg", "abs", "relu", "maximum", "minimum", "where", "cast", "reciprocal"}
)
"""Ops of `tensor` whose float32 result is the one next to the true one, so that one rounding gives half precision."""


BEYOND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensor.sin": lambda x: x.abs() > 1e5,
    "tensor.cos": lambda x: x.abs() > 1e5,
    "tensor.pow": lambda x: x == float("-inf"),
    "tensor.cast": lambda x: x.isnan(),
}
"""Operands that kernels are not made for: angles beyond the range that they are reduced from, powers of minus infinity,
and casts of NaN to truth values. They are given 1 instead."""


def check_kernels(
    ops: Sequence[tuple[OpDef, Sequence[Form]]], dtypes: Sequence[DType], backends: Sequence[str] | None
) -> dict[str, int]:
    """Compare every kernel with the reference; how many, by backend. Raises `CheckFailedError`."""
    made = [_within(dense_case(op, form, dtype)) for op, forms in ops for form in forms for dtype in dtypes]
    cases = [(case, run) for case in made if (run := _run(case)) is not None]
    out: dict[str, int] = {}
    for kind in backends if backends is not None else BACKENDS.names():
        backend, context = BACKENDS.get(kind), context_for(kind, Bucket(1, 17))
        _check_cross_targets(backend, context, cases)
        known = [(case, run) for case, run in cases if _lowers(backend, context, case, run)]
        runner = runner_for(backend, context)
        if runner is None or not known:
            continue
        flushes = "avx512bf16" in context.target.features
        results = runner(backend, context, [run for _, run in known])
        for (case, run), got in zip(known, results, strict=True):
            for result, want in zip(got, run.wanted(), strict=True):
                found = _difference(case, result, want, flushes)
                if found is not None:
                    raise _failure(kind, case, run, found)
        out[kind] = len(known)
    return out


def _within(case: OpCase) -> OpCase:
    """The case with 1 for what kernels are not made for."""
    beyond = BEYOND.get(case.op.name)
    if beyond is None or (case.op.name == "tensor.cast" and case.attrs["dtype"] is not DType.BOOL):
        return case
    tensors = [x.masked_fill(beyond(x), 1.0) if hasattr(x, "masked_fill") else x for x in case.operands]
    return replace(case, operands=tensors)


def _run(case: OpCase) -> RegionRun | None:
    """The op as a region; None if it has no rows, or only moves its operands as they lie in memory."""
    graph = graph_of(case)
    if not graph.inputs or graph.outputs[0].type.shape[:1] != (T,):
        return None
    inputs = graph.inputs
    attrs = {"anchor": case.op.anchor or ROWWISE, "body": graph, "name": case.op.short}
    return RegionRun(Builder().node("kernel.region", inputs, attrs), list(tensors_of(case).values()))


def _lowers(backend: Backend, context: Context, case: OpCase, run: RegionRun) -> bool:
    """Whether there is a kernel; an op that has none is refused in words."""
    try:
        backend.lower({region_digest(run.region): run.region}, context)
    except CodegenError:
        return False
    except Exception as error:
        raise failed(
            f"{case.op.name} in {case.dtype.value}: backend {backend.name} raised {type(error).__name__}, not "
            f"CodegenError: {error}",
            [("region", run.body)],
            run.body,
        ) from error
    return True


def _check_cross_targets(backend: Backend, context: Context, cases: Sequence[tuple[OpCase, RegionRun]]) -> None:
    """Kernels for targets that this machine may not have are at least made."""
    for target in TARGETS.values():
        if target.kind == context.target.kind and target != context.target:
            other = Context(context.bucket, target, context.limits)
            for case, run in cases:
                if _lowers(backend, other, case, run) != _lowers(backend, context, case, run):
                    raise failed(
                        f"{case.op.name} in {case.dtype.value}: backend {backend.name} has a kernel for only one of "
                        f"{target.name} and {context.target.name}",
                        [("region", run.body)],
                        run.body,
                    )


def _difference(case: OpCase, got: torch.Tensor, want: torch.Tensor, flushes: bool) -> Difference | None:
    if got.dtype != want.dtype or got.shape != want.shape:
        raise CheckFailedError(f"{case.op.name}: a kernel gives {got.dtype}{list(got.shape)}")
    if case.op.name.removeprefix("tensor.") in EXACT and case.op.name.startswith("tensor."):
        return compare(got, want, flushes=flushes and got.element_size() == 2)
    return difference(got, want, case, flushes)


def _failure(kind: str, case: OpCase, run: RegionRun, found: Difference) -> CheckFailedError:
    """With the operands at the place of the difference, where they are tensors of the result's shape."""
    values = []
    for name, tensor in tensors_of(case).items():
        at = found.place[-tensor.dim() :] if 0 < tensor.dim() <= len(found.place) else None
        if at is not None and all(i < n for i, n in zip(at, tensor.shape, strict=True)):
            values.append(f"%{name}[{', '.join(map(str, at))}] = {tensor[at].item()!r}")
    return failed(
        f"{case.op.name} in {case.dtype.value}: the kernel for {kind} differs from the reference: {found}",
        [("region", run.body), ("values", "\n".join(values) or "of every kind")],
        run.body,
    )
