"""`check_backend`: what every backend must keep to, on regions of every kind."""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import inferir
from inferir.codegen.backend import Backend, BuildJob, Context, LoweredBucket
from inferir.codegen.backends import BACKENDS
from inferir.codegen.library import bucket_key, region_digest
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import TARGETS, Target
from inferir.ir.errors import CodegenError
from inferir.testing.contexts import context_for
from inferir.testing.failures import CheckFailedError, failed, require_libraries
from inferir.testing.kernel_runs import RegionRun, Runner, runner_for

if TYPE_CHECKING:
    import torch


@dataclass
class BackendReport:
    """What a check of a backend did: names of regions that it has kernels for, why it has none for others, how many
    were run, and why none were, if so.
    """

    name: str
    supported: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    not_run: str = ""

    def __str__(self) -> str:
        ran = self.not_run or f"{self.compared} compared with the reference"
        return f"{self.name}: {len(self.supported)} regions lowered, {len(self.refused)} refused, {ran}"


def check_backend(
    backend: Backend | str,
    *,
    target: Target | None = None,
    regions: Mapping[str, RegionRun] | None = None,
    run: Runner | None = None,
    bucket: Bucket = Bucket(1, 17),  # noqa: B008
) -> BackendReport:
    """Lower regions of every kind, run those that have kernels, and compare them with the reference interpreter.

    The regions are row-wise bodies (`row_bodies`, `number_bodies`), and what the pipeline makes of models of several
    families in float32 and bf16: products with their epilogues, attention, sampling. A region without kernel must be
    refused with `CodegenError` that names it. Lowering twice gives the same texts; a text is Python without a path of
    this machine; the key is JSON, the same twice, and another one for other regions, buckets, limits and targets.

    backend: a backend, or a kind of target ("cpu", "cuda"). target: default this machine for CPUs, else the first of
      the kind. regions: others than those named, by name. run: how to run kernels (`kernel_runs.Runner`), for a backend
      that is not built in; without it, and without a machine that can, kernels are only lowered.

    Raises `CheckFailedError` with the smallest part of a region that fails, and the numbers there.
    """
    require_libraries("check_backend")
    kind = backend if isinstance(backend, str) else target.kind if target is not None else _kind_of(backend)
    made = BACKENDS.get(backend) if isinstance(backend, str) else backend
    context = context_for(kind, bucket)
    context = context if target is None else replace(context, target=target)
    if regions is None:
        from inferir.testing.region_cases import every_region

        regions = every_region()
    report = BackendReport(made.name)
    known = {name: r for name, r in regions.items() if _supported(made, context, name, r, report)}
    _check_lowering(made, context, known)
    _check_key(made, context, known)
    run = run or runner_for(made, context)
    if run is None:
        report.not_run = f"kernels for {context.target.name} do not run here"
        return report
    results = run(made, context, list(known.values()))
    for (name, case), got in zip(known.items(), results, strict=True):
        _compare(made, context, name, case, got, run)
        report.compared += 1
    return report


def _kind_of(backend: Backend) -> str:
    """The kind of target that a backend is registered for."""
    for kind, known in BACKENDS.load().items():
        if known is backend or known.name == backend.name:
            return kind
    raise CodegenError(f"backend {backend.name} is not registered; give the check a target")


def _supported(backend: Backend, context: Context, name: str, case: RegionRun, report: BackendReport) -> bool:
    """Whether there are kernels for a region; if not, the refusal is in words."""
    region = case.region
    try:
        backend.lower({region_digest(region): region}, context)
    except CodegenError as error:
        if str(region.attrs["name"]) not in str(error):
            raise failed(
                f"backend {backend.name} refuses a region without naming it: {error}", [("region", case.body)]
            ) from None
        report.refused[name] = str(error)
        return False
    except Exception as error:
        raise failed(
            f"backend {backend.name} raised {type(error).__name__} for region {name}, not CodegenError: {error}",
            [("region", case.body)],
            case.body,
        ) from error
    report.supported.append(name)
    return True


def _texts(lowered: LoweredBucket) -> list[str]:
    return [str(kernel.source) for kernel in lowered.kernels]


def _check_lowering(backend: Backend, context: Context, known: Mapping[str, RegionRun]) -> None:
    by_digest = {region_digest(c.region): c.region for c in known.values()}
    if not by_digest:
        return
    first, second = (backend.lower(by_digest, context) for _ in range(2))
    for text, again, record in zip(_texts(first), _texts(second), first.meta.kernels, strict=True):
        if text != again:
            raise failed(f"backend {backend.name} makes another text of {record.name} the second time")
    if first.meta != second.meta:
        raise failed(f"backend {backend.name} says other things of the same kernels the second time")
    missing = [
        name for name, c in known.items() if region_digest(c.region) not in {k.region for k in first.meta.kernels}
    ]
    if missing:
        raise failed(f"backend {backend.name} has no kernel for region {missing[0]}, and did not refuse it")
    module = backend.module(first.kernels)
    if module != backend.module(second.kernels):
        raise failed(f"backend {backend.name} makes another module of the same kernels the second time")
    try:
        ast.parse(module)
    except SyntaxError as error:
        raise failed(f"backend {backend.name}: the module's text is not Python: {error}") from None
    _check_paths(backend, "the module's text", module.encode())
    one = next(iter(known.values())).region
    lowered = backend.lower({region_digest(one): one}, context)
    job = BuildJob("test", backend.module(lowered.kernels), context.target, lowered.meta.kernels)
    libraries = [backend.build([job])[0] for _ in range(2)]
    if libraries[0] != libraries[1]:
        raise failed(f"backend {backend.name} builds other bytes of the same module the second time")
    _check_paths(backend, "a library", libraries[0])


def _check_paths(backend: Backend, what: str, content: bytes) -> None:
    """Nothing of this machine is in what an artifact holds."""
    places = {str(Path.home()), str(Path.cwd()), tempfile.gettempdir(), str(Path(inferir.__file__).resolve().parent)}
    for place in sorted(p for p in places if len(p) > 3):
        if place.encode() in content:
            raise failed(f"backend {backend.name}: {what} holds a path of this machine, {place}")


def _check_key(backend: Backend, context: Context, known: Mapping[str, RegionRun]) -> None:
    """What decides code is in the key."""
    by_digest = {region_digest(c.region): c.region for c in known.values()}
    own = backend.key(by_digest, context)
    try:
        text = json.dumps(own, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise failed(f"backend {backend.name}: its key is no JSON: {error}") from None
    if text != json.dumps(backend.key(by_digest, context), sort_keys=True):
        raise failed(f"backend {backend.name} makes another key the second time")
    if not own:
        raise failed(f"backend {backend.name}: its key is empty; it must hold at least the generator's source hash")
    first = bucket_key(backend, by_digest, context)
    others = [t for t in TARGETS.values() if t.kind == context.target.kind and t.name != context.target.name]
    changed = {
        "bucket": replace(context, bucket=Bucket(context.bucket.lo, context.bucket.hi + 7)),
        "limits": replace(context, limits=_longer(context)),
        **({"target": replace(context, target=others[0])} if others else {}),
    }
    for what, other in changed.items():
        if bucket_key(backend, by_digest, other) == first:
            raise failed(f"backend {backend.name}: another {what} has the same key")
    if len(by_digest) > 1 and bucket_key(backend, dict(list(by_digest.items())[1:]), context) == first:
        raise failed(f"backend {backend.name}: other regions have the same key")


def _longer(context: Context) -> Limits:
    return msgspec.structs.replace(context.limits, max_model_len=2 * context.limits.max_model_len)


def _compare(
    backend: Backend, context: Context, name: str, case: RegionRun, got: Sequence[torch.Tensor], run: Runner
) -> None:
    from inferir.testing.region_cases import difference_of, parts_of

    flushes = "avx512bf16" in context.target.features
    wrong = difference_of(name, case, got, flushes)
    if wrong is None:
        return
    parts = [p for p in parts_of(case) if _can(backend, context, p)]
    for part, results in zip(parts, run(backend, context, parts), strict=True):
        found = difference_of(name, part, results, flushes)
        if found is not None:
            raise _failure(backend, name, part, found)
    raise _failure(backend, name, case, wrong)


def _can(backend: Backend, context: Context, case: RegionRun) -> bool:
    try:
        backend.lower({region_digest(case.region): case.region}, context)
    except CodegenError:
        return False
    return True


def _failure(backend: Backend, name: str, case: RegionRun, wrong: str) -> CheckFailedError:
    return failed(
        f"backend {backend.name}: the kernel of region {name} computes something else than the reference",
        [("where", wrong), ("region", case.body)],
        case.body,
    )
