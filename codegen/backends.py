"""Which backend makes code for which kind of target."""

from __future__ import annotations

from inferir.codegen.backend import Backend
from inferir.ir.contract.target import Target
from inferir.ir.errors import TargetError
from inferir.ir.plugin_registry import PluginRegistry

BACKENDS: PluginRegistry[Backend] = PluginRegistry("backends", "backend for targets of kind", TargetError)
"""Backends by the kind of target that they make code for."""

BACKENDS.add("cpu", "inferir.codegen.tvm.backend:BACKEND")
BACKENDS.add("cuda", "inferir.codegen.triton.backend:BACKEND")


def backend_for(target: Target) -> Backend:
    """The backend for a target. Raises `TargetError` if there is none for its kind."""
    return BACKENDS.get(target.kind)
