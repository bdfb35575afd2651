"""Which backend makes code for which kind of target."""

from __future__ import annotations

from collections.abc import Mapping

from inferir.codegen.backend import Backend
from inferir.ir.contract.target import Target
from inferir.ir.errors import TargetError
from inferir.ir.plugin_registry import PluginRegistry

BACKENDS: PluginRegistry[Backend] = PluginRegistry("backends", "backend for targets of kind", TargetError)
"""Backends by the kind of target that they make code for."""

BACKENDS.add("cpu", "inferir.codegen.tvm.backend:BACKEND")
BACKENDS.add("cuda", "inferir.codegen.triton.backend:BACKEND")


def target_named(name: str) -> Target:
    """The target of that name: one of this system, or KIND:NAME of a backend of another distribution, which has
    it in its own `targets`, by name. Raises `TargetError`.
    """
    kind, _, plain = name.partition(":")
    if BACKENDS.outside(kind) is not None:
        known: Mapping[str, Target] = getattr(BACKENDS.get(kind), "targets", {})
        if plain not in known:
            names = ", ".join(f"{kind}:{n}" for n in known) or "none"
            raise TargetError(f"unknown target {name!r}; the backend for targets of kind {kind!r} knows: {names}")
        return known[plain]
    left = next((i for i in BACKENDS.left_out() if i.name == kind), None)
    if left is not None:
        raise TargetError(f"target {name!r}: the backend for its kind, of {left.origin}, is left out: {left.reason}")
    return Target.named(name)


def backend_for(target: Target) -> Backend:
    """The backend for a target. Raises `TargetError` if there is none for its kind."""
    return BACKENDS.get(target.kind)
