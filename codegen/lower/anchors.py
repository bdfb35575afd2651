"""Anchors of a backend: one file per anchor, found by its name, and those that other distributions bring."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import CodegenError
from inferir.ir.plugin_registry import PluginRegistry

_SUFFIX = "_region"


def lowerings(kind: str, package: str) -> PluginRegistry[Any]:
    """The registry of a backend's lowerings by anchor: for the anchor NAME, the function `lower` of the module
    `NAME_region` of `package`; entry points of the group `inferir.KIND` name functions of the same form.
    """
    found: PluginRegistry[Any] = PluginRegistry(
        kind, "lowering of the anchor", CodegenError, lambda v: None if callable(v) else "it cannot be called"
    )
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name.endswith(_SUFFIX):
            found.add(module.name.removesuffix(_SUFFIX), f"{package}.{module.name}:lower")
    return found


@dataclass(frozen=True)
class Anchors:
    """What a backend lowers. backend: its name, for messages."""

    backend: str
    registry: PluginRegistry[Any]

    def lower(self, anchor: str) -> Any:
        """The function that lowers regions of this anchor. Raises `CodegenError` naming an anchor without one."""
        known = self.registry.names()
        if anchor in known or any(info.name == anchor for info in self.registry.left_out()):
            return self.registry.get(anchor)
        raise CodegenError(f"the {self.backend} backend has no {anchor} kernels, only {', '.join(known)}")
