"""Index arithmetic: where in memory the elements of a block lie.

An `Index` is offset + Σ coefficient · atom. Atoms are the axes of the kernel's blocks and, where a reshape splits a
position in a way that its axes do not, quotients and remainders by a constant. Ranges of all atoms are known, so that a
reshape that follows the axes leaves plain sums, which the compiler turns into wide loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Positions 0 … extent - 1 along dimension `position` of the kernel's blocks; a program holds `block` of them.

    masked: a program may also hold positions past the end, which must not be read or written.
    """

    name: str
    extent: int
    position: int
    block: int
    masked: bool

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return self.extent - 1

    @property
    def axes(self) -> frozenset[Axis]:
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
    def axes(self) -> frozenset[Axis]:
        return self.of.axes

    def text(self) -> str:
        return f"({self.of.text()}) {'//' if self.quotient else '%'} {self.by}"


Atom = Axis | Digit


@dataclass(frozen=True)
class Index:
    """offset + Σ coefficient · atom, with atoms in a canonical order."""

    terms: tuple[tuple[Atom, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(axis: Axis) -> Index:
        return Index(((axis, 1),)) if axis.extent > 1 else Index()

    @staticmethod
    def total(terms: Mapping[Atom, int], offset: int) -> Index:
        """The sum of `terms`, with quotient and remainder of one position put together again where both occur."""
        left = {a: c for a, c in terms.items() if c}
        for atom, c in list(left.items()):
            if isinstance(atom, Digit) and not atom.quotient:
                partner = Digit(atom.of, atom.by, True)
                if left.get(partner) == c * atom.by:
                    del left[atom], left[partner]
                    rest = Index.total(left, offset)
                    return rest + atom.of.scale(c)
        return Index(tuple(sorted(left.items(), key=lambda item: item[0].text())), offset)

    @property
    def low(self) -> int:
        return self.offset + sum(c * (a.low if c > 0 else a.high) for a, c in self.terms)

    @property
    def high(self) -> int:
        return self.offset + sum(c * (a.high if c > 0 else a.low) for a, c in self.terms)

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset().union(*(a.axes for a, _ in self.terms))

    @property
    def positions(self) -> frozenset[int]:
        """Block dimensions along which the index varies."""
        return frozenset(a.position for a in self.axes)

    def __add__(self, other: Index) -> Index:
        merged = dict(self.terms)
        for atom, c in other.terms:
            merged[atom] = merged.get(atom, 0) + c
        return Index.total(merged, self.offset + other.offset)

    def shift(self, by: int) -> Index:
        return Index(self.terms, self.offset + by)

    def scale(self, by: int) -> Index:
        return Index.total({a: c * by for a, c in self.terms}, self.offset * by)

    def divmod(self, by: int) -> tuple[Index, Index]:
        """(self // by, self % by) for positions that are not negative."""
        if by == 1:
            return self, Index()
        whole = Index(tuple((a, c // by) for a, c in self.terms if c % by == 0), self.offset // by)
        rest = Index(tuple((a, c) for a, c in self.terms if c % by), self.offset % by)
        if not rest.terms or (rest.low >= 0 and rest.high < by):
            return whole, rest
        return whole + Index(((Digit(rest, by, True), 1),)), Index(((Digit(rest, by, False), 1),))

    def text(self) -> str:
        """A Triton expression of type int32."""
        parts = []
        for atom, c in self.terms:
            base = atom.text() if isinstance(atom, Axis) else f"({atom.text()})"
            parts.append(base if c == 1 else f"{base} * {c}")
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts).replace("+ -", "- ")


def flatten(index: Iterable[Index], shape: Iterable[int]) -> Index:
    """The row-major position of `index` in `shape`."""
    out = Index()
    for i, size in zip(index, shape, strict=True):
        out = out.scale(size) + i
    return out


def unflatten(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The index of a row-major position in `shape`."""
    out: list[Index] = []
    for size in reversed(shape[1:]):
        position, rest = position.divmod(size)
        out.append(rest)
    return (position, *reversed(out)) if shape else ()
