"""Target records: what code is generated for. Plain data, never a probe of the machine that compiles."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from inferir.ir.errors import TargetError

_V3 = ("sse4.2", "popcnt", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# /proc/cpuinfo spells some features differently from LLVM.
_CPUINFO = {
    "avx512bf16": "avx512_bf16",
    "avx512vnni": "avx512_vnni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sse4.2": "sse4_2",
}


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for.

    kind: "cpu" or "cuda"; name: the spelling users give; mcpu: LLVM's processor name or the SM version; features:
    instruction-set features in LLVM's spelling that the code may use; vector_bits: register width; cores, l1d_bytes,
    l2_bytes: what tile choices assume.
    """

    kind: str
    name: str
    mcpu: str
    features: tuple[str, ...] = ()
    vector_bits: int = 512
    cores: int = 2
    l1d_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024

    def has(self, feature: str) -> bool:
        return feature in self.features

    def record(self) -> dict[str, Any]:
        """A JSON-able record, for cache keys and manifests."""
        return asdict(self)

    @staticmethod
    def from_record(record: dict[str, Any]) -> Target:
        return Target(**{**record, "features": tuple(record["features"])})

    @staticmethod
    def named(name: str) -> Target:
        """The target of that name, before which its kind may stand: "cuda:sm_90". Raises `TargetError` listing all."""
        if name == "host":
            return Target.host()
        kind, _, plain = name.rpartition(":")
        found = TARGETS.get(plain)
        if found is None or kind not in ("", found.kind):
            known = (t.name if t.kind == "cpu" else f"{t.kind}:{t.name}" for t in TARGETS.values())
            raise TargetError(f"unknown target {name!r}; known: host, {', '.join(known)}")
        return found

    @staticmethod
    def host() -> Target:
        """The best known target that this machine can run."""
        have = host_features()
        for target in TARGETS.values():
            if target.kind == "cpu" and not missing_features(target, have):
                return target
        raise TargetError(f"no known target runs on this machine ({platform.machine()}); at least x86-64-v3 is needed")


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("cpu", "x86-64-v4+bf16+vnni", "x86-64-v4", (*_V4, "avx512bf16", "avx512vnni")),
        Target("cpu", "x86-64-v4", "x86-64-v4", _V4),
        Target("cpu", "x86-64-v3", "x86-64-v3", _V3, vector_bits=256),
        Target("cuda", "sm_90", "sm_90", (), vector_bits=0, cores=132, l1d_bytes=256 * 1024, l2_bytes=50 * 1024 * 1024),
        Target("cuda", "sm_80", "sm_80", (), vector_bits=0, cores=108, l1d_bytes=192 * 1024, l2_bytes=40 * 1024 * 1024),
    )
}


def host_features(cpuinfo: str | None = None) -> frozenset[str]:
    """Feature flags of this machine's processor as /proc/cpuinfo spells them; `cpuinfo` replaces the file's text."""
    if cpuinfo is None:
        if not os.path.exists("/proc/cpuinfo"):
            return frozenset()
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cpuinfo = file.read()
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def missing_features(target: Target, have: frozenset[str]) -> list[str]:
    """Features of `target` that a processor with the flags `have` lacks, in LLVM's spelling."""
    return [f for f in target.features if _CPUINFO.get(f, f) not in have]
