"""What other distributions may add, when it runs, and which registry reads it. The one table of all kinds."""

from __future__ import annotations

from dataclasses import dataclass

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


KINDS = (
    PluginKind("passes", (COMPILE,), "inferir.passes.plugin_passes:PASSES"),
    PluginKind("ops", (COMPILE,), "inferir.ir.graph.registry:DIALECTS"),
    PluginKind("backends", (COMPILE,), "inferir.codegen.backends:BACKENDS"),
    PluginKind("formats", (COMPILE,), "inferir.ir.weight_format:FORMATS"),
    PluginKind("tvm_formats", (COMPILE,), "inferir.codegen.tvm.kernels.microkernel:READERS"),
    PluginKind("kv", (COMPILE, SERVE), "inferir.ir.contract.kv_specs:KV_KINDS"),
    PluginKind("executors", (SERVE,), "inferir.runtime.executor.executors:EXECUTORS"),
    PluginKind("routes", (SERVE,), "inferir.server.routes:ROUTES", "--allow-route"),
    PluginKind("stats", (SERVE,), "inferir.server.engine.stat_sinks:SINKS", "--stat-sink"),
)


def kinds_of(phase: str) -> tuple[str, ...]:
    """Names of the kinds whose entries run in `phase`."""
    return tuple(kind.name for kind in KINDS if phase in kind.phases)
