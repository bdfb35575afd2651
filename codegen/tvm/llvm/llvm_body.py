"""Writing small LLVM functions, one text per lane count, and the registry of them.

A helper is declared once with `@helper(name, signature)`; the function below it receives a `Body` and the argument
names and returns the name of the result. The same text serves every lane count: one lane is the scalar type, L lanes
are `<L x type>`.

Signature letters: `f` float, `i` i32, `h` i16 (bf16 storage, `uint16` in TIR), all of L lanes; `F` a scalar
float.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod

LANES = (1, 2, 4, 8, 16)
"""Lane counts in which every vector helper exists."""

_ELEMENT = {"f": "float", "i": "i32", "h": "i16", "d": "double", "b": "i1", "l": "i64", "B": "bfloat"}


@dataclass(frozen=True)
class Helper:
    """A registered helper: argument and result letters, and the writer of its body."""

    name: str
    args: str
    result: str
    write: Callable[..., str]


HELPERS: dict[str, Helper] = {}


def helper(name: str, signature: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a vector helper; `signature` is e.g. `"ff->f"`."""
    args, result = signature.split("->")

    def register(write: Callable[..., str]) -> Callable[..., str]:
        HELPERS[name] = Helper(name, args, result, write)
        return write

    return register


def llvm_type(letter: str, lanes: int) -> str:
    """LLVM's spelling of a signature letter."""
    if letter == "F":
        return "float"
    element = _ELEMENT[letter]
    return element if lanes == 1 else f"<{lanes} x {element}>"


def suffix(letter: str, lanes: int) -> str:
    """The type suffix of an overloaded intrinsic: `v16f32`, `f32`."""
    element = {"f": "f32", "i": "i32", "d": "f64", "l": "i64"}[letter]
    return element if lanes == 1 else f"v{lanes}{element}"


class Body:
    """Collects the instructions of one helper for one lane count.

    `features` are LLVM feature names of the target (`avx512f`, `avx512bf16`, ...). `calls` gathers the names of other
    helpers used, `declares` the intrinsic declarations needed.
    """

    def __init__(self, lanes: int, features: frozenset[str]) -> None:
        self.lanes = lanes
        self.features = features
        self.lines: list[str] = []
        self.calls: set[str] = set()
        self.declares: set[str] = set()
        self._count = 0

    def type(self, letter: str) -> str:
        return llvm_type(letter, self.lanes)

    def emit(self, text: str) -> str:
        """Add an instruction and return the name of its result."""
        name = f"%v{self._count}"
        self._count += 1
        self.lines.append(f"  {name} = {text}")
        return name

    def const(self, letter: str, value: float) -> str:
        """A constant in every lane; floats are rounded to float32 first (`d`: kept)."""
        if letter == "f":
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        if letter in "fd":
            text = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
        else:
            text = str(int(value))
        return text if self.lanes == 1 else f"splat ({_ELEMENT[letter]} {text})"

    def op(self, opcode: str, letter: str, a: str, b: str) -> str:
        """A binary instruction on two values of type `letter`."""
        return self.emit(f"{opcode} {self.type(letter)} {a}, {b}")

    fadd = partialmethod(op, "fadd", "f")
    fsub = partialmethod(op, "fsub", "f")
    fmul = partialmethod(op, "fmul", "f")
    fdiv = partialmethod(op, "fdiv", "f")

    def fcmp(self, predicate: str, a: str, b: str, letter: str = "f") -> str:
        return self.emit(f"fcmp {predicate} {self.type(letter)} {a}, {b}")

    def icmp(self, predicate: str, a: str, b: str, letter: str = "i") -> str:
        return self.emit(f"icmp {predicate} {self.type(letter)} {a}, {b}")

    def select(self, condition: str, a: str, b: str, letter: str = "f") -> str:
        kind = self.type(letter)
        return self.emit(f"select {self.type('b')} {condition}, {kind} {a}, {kind} {b}")

    def convert(self, opcode: str, value: str, source: str, target: str) -> str:
        """A conversion (`bitcast`, `zext`, `fptrunc`, ...) between two letters."""
        return self.emit(f"{opcode} {self.type(source)} {value} to {self.type(target)}")

    def bits(self, value: str) -> str:
        return self.convert("bitcast", value, "f", "i")

    def floats(self, value: str) -> str:
        return self.convert("bitcast", value, "i", "f")

    def intrinsic(self, name: str, letter: str, *args: str) -> str:
        """Call an overloaded intrinsic whose arguments and result share one type: `intrinsic("fma", "f", a, b, c)`."""
        kind = self.type(letter)
        full = f"@llvm.{name}.{suffix(letter, self.lanes)}"
        self.declares.add(f"declare {kind} {full}({', '.join([kind] * len(args))})")
        return self.emit(f"call {kind} {full}({', '.join(f'{kind} {a}' for a in args)})")

    def fma(self, a: str, b: str, c: str, letter: str = "f") -> str:
        return self.intrinsic("fma", letter, a, b, c)

    def horner(self, x: str, coefficients: list[float], letter: str = "f") -> str:
        """The polynomial with `coefficients` in ascending order, at `x`, by fused multiply-adds."""
        value = self.const(letter, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.const(letter, c), letter)
        return value

    def call(self, name: str, *args: str) -> str:
        """Call another helper of the same lane count."""
        known = HELPERS[name]
        full = f"{name}_{self.lanes}"
        self.calls.add(full)
        typed = ", ".join(f"{self.type(k)} {a}" for k, a in zip(known.args, args, strict=True))
        return self.emit(f"call {self.type(known.result)} @{full}({typed})")


def define(name: str, lanes: int, features: frozenset[str]) -> tuple[str, Body]:
    """The text of helper `name` for `lanes` lanes, and the `Body` that tells what else it needs."""
    known = HELPERS[name]
    body = Body(lanes, features)
    names = [f"%a{i}" for i in range(len(known.args))]
    result = known.write(body, *names)
    params = ", ".join(f"{body.type(k)} {a}" for k, a in zip(known.args, names, strict=True))
    kind = body.type(known.result)
    head = f"define {kind} @{name}_{lanes}({params}) alwaysinline nounwind {{"
    return "\n".join([head, *body.lines, f"  ret {kind} {result}", "}"]), body
