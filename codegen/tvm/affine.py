"""Index expressions of the form Σ coefficient · variable + offset with known variable ranges.

Views (reshape, slice, concatenation) are lowered by rewriting indices. Because every variable's range is known,
division and remainder by a constant can be decided exactly where the digits do not mix, and a concatenation knows which
part it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferir.ir.errors import CodegenError


@dataclass(frozen=True)
class Var:
    """A loop variable `name` with values 0 … extent - 1."""

    name: str
    extent: int


@dataclass(frozen=True)
class Affine:
    """offset + Σ coefficient · variable, all non-negative."""

    terms: tuple[tuple[Var, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(var: Var, coefficient: int = 1) -> Affine:
        return Affine(((var, coefficient),))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.offset + other)
        merged: dict[Var, int] = dict(self.terms)
        for var, c in other.terms:
            merged[var] = merged.get(var, 0) + c
        return Affine(tuple((v, c) for v, c in merged.items() if c), self.offset + other.offset)

    def scale(self, factor: int) -> Affine:
        return Affine(tuple((v, c * factor) for v, c in self.terms if factor), self.offset * factor)

    @property
    def low(self) -> int:
        return self.offset

    @property
    def high(self) -> int:
        """The largest value."""
        return self.offset + sum(c * (v.extent - 1) for v, c in self.terms)

    def divmod(self, d: int, span: int = 0) -> tuple[Affine, Affine]:
        """(self // d, self % d), valid for `span` further positions as well.

        Raises `CodegenError` if a digit would carry, that is, if the result is not of this form.
        """
        if d == 1:
            return self, Affine()
        quotient = tuple((v, c // d) for v, c in self.terms if c % d == 0)
        rest = Affine(tuple((v, c) for v, c in self.terms if c % d != 0), self.offset % d)
        if rest.high + span >= d:
            raise CodegenError(f"index {self.text()} does not divide evenly by {d}")
        return Affine(quotient, self.offset // d), rest

    def text(self) -> str:
        """A TIR expression."""
        parts = [v.name if c == 1 else f"{v.name} * {c}" for v, c in self.terms]
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts)


def flatten(index: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """The row-major linear index."""
    out = Affine()
    for i, size in zip(index, shape, strict=True):
        out = out.scale(size) + i
    return out


def unflatten(linear: Affine, shape: Sequence[int], span: int = 0) -> tuple[Affine, ...]:
    """The index of a row-major linear position in `shape`; the last axis holds `span` further positions.

    Raises `CodegenError` if the positions do not stay within one row of the last axis.
    """
    out: list[Affine] = []
    for k, size in enumerate(reversed(shape)):
        if k == len(shape) - 1:
            out.append(linear)
            break
        linear, rest = linear.divmod(size, span if k == 0 else 0)
        out.append(rest)
    return tuple(reversed(out))
