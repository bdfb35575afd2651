"""What other distributions may add, when it runs, and which registry reads it. The one table of all kinds."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from inferir.ir.plugin_registry import PluginRegistry

COMPILE, SERVE = "compile", "serve"


@dataclass(frozen=True)
class PluginKind:
    """Entries of the group `inferir.NAME`.

    phases: `COMPILE` if their code runs while a model is compiled, which makes it part of cache keys; `SERVE` if it
    runs in a server. registry: the place ("package.module:name") of the registry that reads them.
    allow: the option of `inferir serve` that must name an entry before it takes part; "" where being installed is
    enough.
    """

    name: str
    phases: tuple[str, ...]
    registry: str
    allow: str = ""

    def load_registry(self) -> PluginRegistry[Any]:
        """Import the registry. Raises ImportError where what it needs is not installed."""
        module, _, name = self.registry.partition(":")
        registry: PluginRegistry[Any] = getattr(importlib.import_module(module), name)
        return registry


KINDS = (
    PluginKind("passes", (COMPILE,), "inferir.passes.plugin_passes:PASSES"),
    PluginKind("ops", (COMPILE,), "inferir.ir.ops.dialects:DIALECTS"),
    PluginKind("backends", (COMPILE,), "inferir.codegen.backends:BACKENDS"),
    PluginKind("formats", (COMPILE,), "inferir.ir.weight_format:FORMATS"),
    PluginKind("kernels", (COMPILE,), "inferir.codegen.overrides:OVERRIDES"),
    PluginKind("tvm_ops", (COMPILE,), "inferir.codegen.tvm.scalar:FORMS"),
    PluginKind("tvm_regions", (COMPILE,), "inferir.codegen.tvm.regions:LOWERINGS"),
    PluginKind("tvm_formats", (COMPILE,), "inferir.codegen.tvm.kernels.microkernel:READERS"),
    PluginKind("triton_ops", (COMPILE,), "inferir.codegen.triton.scalar:FORMS"),
    PluginKind("triton_regions", (COMPILE,), "inferir.codegen.triton.backend:LOWERINGS"),
    PluginKind("kv", (COMPILE, SERVE), "inferir.ir.contract.kv_specs:KV_KINDS"),
    PluginKind("executors", (SERVE,), "inferir.runtime.executor.executors:EXECUTORS"),
    PluginKind("routes", (SERVE,), "inferir.server.routes:ROUTES", "--allow-route"),
    PluginKind("stats", (SERVE,), "inferir.server.engine.stat_sinks:SINKS", "--stat-sink"),
)


def kind_named(name: str) -> PluginKind:
    """The kind whose entries are in the group `inferir.NAME`. Raises KeyError."""
    found = {kind.name: kind for kind in KINDS}
    return found[name]


def kinds_of(phase: str) -> tuple[str, ...]:
    """Names of the kinds whose entries run in `phase`."""
    return tuple(kind.name for kind in KINDS if phase in kind.phases)
