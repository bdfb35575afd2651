"""What evaluation talks about: values in blocks, the places they are taken at, and the shapes of a body's types."""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.triton.index import Index
from inferir.codegen.triton.scalar import MEMORY
from inferir.ir.errors import CodegenError
from inferir.ir.graph.types import TensorType


class NoRoomError(CodegenError):
    """A reduction finds no block dimension to run over; another block shape may have one."""


@dataclass(frozen=True)
class Guard:
    """Elements count only where low <= index < high; None is no bound."""

    index: Index
    low: int | None
    high: int | None

    def text(self) -> str:
        at = self.index.text()
        bounds = [f"({at} >= {self.low})"] if self.low is not None else []
        bounds += [f"({at} < {self.high})"] if self.high is not None else []
        return " & ".join(bounds)


@dataclass(frozen=True)
class Block:
    """The text of a computed value and the block dimensions along which it varies."""

    text: str
    positions: frozenset[int] = frozenset()


Place = tuple[Index, ...]
Guards = tuple[Guard, ...]


def memory(type_: TensorType) -> str:
    """The pointer element type of a tensor. Raises `CodegenError` for one that kernels cannot hold."""
    if type_.dtype not in MEMORY:
        raise CodegenError(f"{type_.dtype.value} has no Triton form")
    return MEMORY[type_.dtype]
