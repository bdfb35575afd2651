"""Instruction sets by name, and what they mean for LLVM.

A name is a base level and optional extensions: `x86-64-v4+bf16+vnni`, `x86-64-v4`, `x86-64-v3`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferir.ir.errors import TargetError

_BASES = {
    "x86-64-v3": frozenset({"avx2", "fma", "f16c", "bmi2"}),
    "x86-64-v4": frozenset({"avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl"}),
}
_EXTENSIONS = {"bf16": "avx512bf16", "vnni": "avx512vnni"}


@dataclass(frozen=True)
class Isa:
    """A CPU instruction set: `mcpu` is LLVM's processor name, `features` all vector features code may use."""

    name: str
    mcpu: str
    extensions: tuple[str, ...]
    features: frozenset[str]

    @property
    def vector_registers(self) -> int:
        """Architectural vector registers, in units of 16 floats (AVX2: 16 registers of 8 floats)."""
        return 32 if "avx512f" in self.features else 8


def parse_isa(name: str) -> Isa:
    """Read an instruction-set name; raises `TargetError` naming the part that is unknown."""
    base, *extra = name.split("+")
    if base not in _BASES:
        raise TargetError(f"target {name!r}: unknown base {base!r}, known: {', '.join(_BASES)}")
    unknown = [e for e in extra if e not in _EXTENSIONS]
    if unknown:
        raise TargetError(f"target {name!r}: unknown extension {unknown[0]!r}, known: {', '.join(_EXTENSIONS)}")
    extensions = tuple(sorted(_EXTENSIONS[e] for e in extra))
    if extensions and base != "x86-64-v4":
        raise TargetError(f"target {name!r}: extensions need the base x86-64-v4")
    return Isa(name, base, extensions, _BASES[base] | set(extensions))
