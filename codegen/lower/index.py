"""Index algebra: where the elements of a place lie, as sums whose ranges are known.

An `Index` is offset + Σ coefficient · atom. Atoms are variables (loop counters, block axes) and, where a reshape splits
a position in a way that its variables do not, quotients and remainders by a constant. Because every range is known, a
reshape that follows the variables leaves plain sums, and a concatenation knows which parts it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferir.ir.errors import CodegenError


@dataclass(frozen=True)
class Var:
    """A variable `name` with values 0 … extent - 1."""

    name: str
    extent: int

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return self.extent - 1

    @property
    def variables(self) -> frozenset[Var]:
        return frozenset((self,))

    def text(self) -> str:
        return self.name


@dataclass(frozen=True)
class Digit:
    """of // by (`quotient`) or of % by."""

    of: Index
    by: int
    quotient: bool

    @property
    def low(self) -> int:
        return min(0, self.of.low // self.by) if self.quotient else 0

    @property
    def high(self) -> int:
        return self.of.high // self.by if self.quotient else self.by - 1

    @property
    def variables(self) -> frozenset[Var]:
        return self.of.variables

    def text(self) -> str:
        return f"(({self.of.text()}) {'//' if self.quotient else '%'} {self.by})"


Atom = Var | Digit


@dataclass(frozen=True)
class Index:
    """offset + Σ coefficient · atom, with atoms in the order in which they were added."""

    terms: tuple[tuple[Atom, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(var: Var, coefficient: int = 1) -> Index:
        return Index(((var, coefficient),))

    @staticmethod
    def total(terms: Mapping[Atom, int], offset: int) -> Index:
        """The sum of `terms`, with quotient and remainder of one position put together again where both occur."""
        left = {a: c for a, c in terms.items() if c}
        for atom, c in left.items():
            if isinstance(atom, Digit) and not atom.quotient:
                partner = Digit(atom.of, atom.by, True)
                if left.get(partner) == c * atom.by:
                    rest = {a: k for a, k in left.items() if a not in (atom, partner)}
                    return Index.total(rest, offset) + atom.of.scale(c)
        return Index(tuple(left.items()), offset)

    @property
    def low(self) -> int:
        """The smallest value."""
        return self.offset + sum(c * (a.low if c > 0 else a.high) for a, c in self.terms)

    @property
    def high(self) -> int:
        """The largest value."""
        return self.offset + sum(c * (a.high if c > 0 else a.low) for a, c in self.terms)

    @property
    def variables(self) -> frozenset[Var]:
        return frozenset[Var]().union(*(a.variables for a, _ in self.terms))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.offset + other)
        merged = dict(self.terms)
        for atom, c in other.terms:
            merged[atom] = merged.get(atom, 0) + c
        return Index.total(merged, self.offset + other.offset)

    def scale(self, by: int) -> Index:
        return Index.total({a: c * by for a, c in self.terms}, self.offset * by)

    def divmod(self, by: int, span: int | None = None) -> tuple[Index, Index]:
        """(self // by, self % by) for positions that are not negative.

        With a `span`, both hold for so many further positions as well, as sums without digits; raises `CodegenError` if
        there are none.
        """
        if by == 1:
            return self, Index()
        whole = Index(tuple((a, c // by) for a, c in self.terms if c % by == 0), self.offset // by)
        rest = Index(tuple((a, c) for a, c in self.terms if c % by), self.offset % by)
        if rest.low >= 0 and rest.high + (span or 0) < by:
            return whole, rest
        if span is not None:
            raise CodegenError(f"index {self.text()} does not divide evenly by {by}")
        return whole + Index(((Digit(rest, by, True), 1),)), Index(((Digit(rest, by, False), 1),))

    def text(self) -> str:
        """An expression that Python, TIR and Triton spell alike."""
        parts = [a.text() if c == 1 else f"{a.text()} * {c}" for a, c in self.terms]
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts).replace("+ -", "- ")


def flatten(index: Iterable[Index], shape: Iterable[int]) -> Index:
    """The row-major position of `index` in `shape`."""
    out = Index()
    for i, size in zip(index, shape, strict=True):
        out = out.scale(size) + i
    return out


def unflatten(position: Index, shape: Sequence[int], span: int | None = None) -> tuple[Index, ...]:
    """The index of a row-major position in `shape`.

    span: so many further positions must lie in the same row of the last axis, and no axis may need a digit; raises
    `CodegenError` where that cannot be. None: any index will do.
    """
    out: list[Index] = []
    for k, size in enumerate(reversed(shape[1:])):
        position, rest = position.divmod(size, span if k == 0 or span is None else 0)
        out.append(rest)
    return (position, *reversed(out)) if shape else ()
