"""Which plug-ins an artifact records. Passes, ops, formats and kernels are in `tests/plugins`, with a real compile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from plugin_distributions import Plugged

from inferir.codegen.backends import BACKENDS
from inferir.compile.plugin_use import plugins_used
from inferir.frontend.facts import RULES_FILE
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import KV_KINDS
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Graph
from inferir.runtime.executor.executors import EXECUTORS

CODE = """
import msgspec
from inferir.ir.contract.kv_reads import FULL_ATTENTION, Reads
from inferir.ir.contract.kv_specs import KVCacheSpec

class Everything(Reads, msgspec.Struct, frozen=True, tag="everything"):
    def first(self, position):
        return 0

class Latent(KVCacheSpec, msgspec.Struct, frozen=True, kw_only=True, tag="latent"):
    block_size: int
    reads: Reads = Everything()
    tensors = ()

class Backend:
    name, suffix = "fpga", ".bit"

class Executor:
    pass

BACKEND = Backend()
"""
TARGET = Target("fpga", "small", "small")


def used(target: Target, *kv: KVCacheGroup) -> list[tuple[str, str, bool]]:
    result: Any = SimpleNamespace(graph=Graph((), ()), transforms={}, records=(), kv=kv)
    captured: Any = SimpleNamespace(graph=Graph((), ()), trace={RULES_FILE: b"{}"})
    return [(r.kind, r.name, r.serves) for r in plugins_used(captured, result, [], target)]


def test_what_serving_needs_is_marked(plugged: Plugged) -> None:
    plugged(
        [BACKENDS, EXECUTORS, KV_KINDS],
        "acme",
        CODE,
        backends={"fpga": "BACKEND", "unused": "BACKEND"},
        executors={"fpga": "Executor"},
        kv={"latent": "Latent", "everything": "Everything"},
    )
    spec: Any = KV_KINDS.get("latent")(block_size=16)  # type: ignore[call-arg]
    assert used(TARGET, KVCacheGroup(spec=spec, layers=(0, 1))) == [
        ("backends", "fpga", False),
        ("kv", "everything", True),
        ("kv", "latent", True),
        ("executors", "fpga", True),
    ]
    assert used(Target.named("x86-64-v3")) == []


def test_nothing_is_asked_where_nothing_is_installed() -> None:
    nothing: Any = None
    assert plugins_used(nothing, nothing, nothing, TARGET) == ()
