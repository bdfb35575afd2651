"""Kernels of other distributions in the place of ours, by entry points of the group `inferir.kernels`.

An override says for which regions and targets it has a kernel, and makes it from ours: a kernel of the backend's own
form with another text. It keeps its name and parameters, so that nothing else changes. Who made a kernel is part of its
record (`LoweredKernel.made_by`) and of the artifact's manifest; like all plug-ins that take part in compiling, it is
part of the cache key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inferir.codegen.backend import Backend, Context, LoweredBucket, LoweredKernel
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Node
from inferir.ir.plugin_registry import PluginRegistry
from inferir.ir.system.error_report import one_line

KEPT = ("name", "params", "args", "grid")
"""Fields of a kernel that must stay as they are: the program of a step is made for them."""


@dataclass(frozen=True)
class KernelOverride:
    """What an entry point names.

    backend: "tvm", "triton" or another; targets: names or kinds of targets, such as ("x86-64-v4", "cuda"), () for all.
    matches: (region, context) -> whether it has kernels for the region. rewrite: (kernel, region, context) -> the
    kernel with another text (`dataclasses.replace(kernel, source=...)`), or None for a kernel that stays as it is; a
    region may have several kernels, one after another.
    """

    backend: str
    matches: Callable[[Node, Context], bool]
    rewrite: Callable[[Any, Node, Context], Any]
    targets: tuple[str, ...] = ()

    def meant_for(self, target: Target) -> bool:
        return not self.targets or target.name in self.targets or target.kind in self.targets


def _problem(value: Any) -> str | None:
    return None if isinstance(value, KernelOverride) else f"it is no KernelOverride but of type {type(value).__name__}"


OVERRIDES: PluginRegistry[KernelOverride] = PluginRegistry("kernels", "kernel override", CodegenError, _problem)


def override_kernels(
    lowered: LoweredBucket, backend: Backend, regions: Mapping[str, Node], context: Context
) -> LoweredBucket:
    """`lowered` with the kernels of all overrides that match.

    Raises `CodegenError` naming override and region: for one that fails or changes what must stay, and for two that
    match one region.
    """
    loaded = OVERRIDES.load()
    meant = {n: o for n, o in loaded.items() if o.backend == backend.name and o.meant_for(context.target)}
    if not meant:
        return lowered
    chosen = {digest: _matching(meant, region, context) for digest, region in regions.items()}
    kernels: list[Any] = []
    records: list[LoweredKernel] = []
    for kernel, record in zip(lowered.kernels, lowered.meta.kernels, strict=True):
        name = chosen.get(record.region)
        new = None if name is None else _rewritten(name, meant[name], kernel, regions[record.region], context)
        kernels.append(kernel if new is None else new)
        records.append(record if new is None else msgspec.structs.replace(record, made_by=_named(str(name))))
    return LoweredBucket(tuple(kernels), msgspec.structs.replace(lowered.meta, kernels=tuple(records)))


def _named(name: str) -> str:
    info = OVERRIDES.outside(name)
    return f"{name} of {info.origin}" if info is not None else name


def _matching(meant: Mapping[str, KernelOverride], region: Node, context: Context) -> str | None:
    found = [n for n, o in meant.items() if _call(n, region, lambda o=o: o.matches(region, context))]  # type: ignore[misc]
    if len(found) > 1:
        both = " and ".join(map(_named, found))
        raise CodegenError(f"region {region.attrs['name']}: the kernel overrides {both} both match; remove one of them")
    return found[0] if found else None


def _rewritten(name: str, override: KernelOverride, kernel: Any, region: Node, context: Context) -> Any:
    new = _call(name, region, lambda: override.rewrite(kernel, region, context))
    if new is None:
        return None
    where = f"region {region.attrs['name']}: the kernel override {_named(name)}"
    if type(new) is not type(kernel):
        raise CodegenError(f"{where} gives a {type(new).__name__}, not a {type(kernel).__name__}")
    for field in KEPT:
        if getattr(new, field, None) != getattr(kernel, field, None):
            raise CodegenError(f"{where} changes {field!r} of {kernel.name}, which must stay as it is")
    if getattr(new, "scratch_bytes", 0) > getattr(kernel, "scratch_bytes", 0):
        raise CodegenError(f"{where} needs more scratch memory than {kernel.name} has: {kernel.scratch_bytes} bytes")
    return new


def _call(name: str, region: Node, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # whatever it raises: a kernel that was to be replaced must not silently be ours
        reason = one_line(f"{type(error).__name__}: {error}")
        raise CodegenError(
            f"region {region.attrs['name']}: the kernel override {_named(name)} fails: {reason}"
        ) from error
