"""What a kernel driver hands over, and small helpers to write TVMScript text.

A *task kernel* is the text of one private PrimFunc (the entry, and any private PrimFuncs it calls) that computes one
fixed piece, a task, of one operation. `driver/step_driver.py` joins the kernels of a bucket with the step driver into
one module.

The entry's signature, always in this order::

    def NAME(<one T.handle(dtype) per Param>, task: T.int32, later: T.int32, <one T.int32 per name of COUNT_NAMES>,
             scratch: T.handle("float32")) -> T.int32

The counts are those of this step: `n_t` is the value of the symbol T, and so on (`ir/contract/symbols.py`). `later` is
the task that the same thread takes next, as far as can be told (it may be beyond the last one); only prefetches may
depend on it. `scratch` is memory of the calling thread, 64-byte aligned, at least `TaskKernel.scratch_bytes` long,
with undefined contents. A PrimFunc can only return 0. Task boundaries may depend on the counts but never on the
threads, so results do not depend on who computes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from inferir.ir.contract.symbols import COUNTED

COUNT_NAMES = tuple(f"n_{symbol.name.lower()}" for symbol in COUNTED)
"""The run-time counts every entry receives, in order: `n_` and the symbol in small letters."""

STORED_COUNT = "n_stored"
"""A count that an earlier operation, or the host, has left in memory."""

_NOALIAS = 'T.func_attr({"tirx.noalias": True})'
_HELPER = re.compile(r'"(inf_\w+)"')


@dataclass(frozen=True)
class Param:
    """One pointer parameter; `dtype` is the element type in TIR's spelling (bf16: `uint16`, or `int32` pairs)."""

    name: str
    dtype: str


@dataclass(frozen=True)
class PrivateFunction:
    """A private PrimFunc that several kernels of a module may share; the same name must mean the same text."""

    name: str
    source: str


@dataclass(frozen=True)
class Stream:
    """Memory that a kernel reads once, in the order of its tasks: parameter number, and bytes per task.

    `readers` is a TIR expression over the counts: how many tasks in a row read the same.
    """

    param: int
    task_bytes: int
    readers: str = "1"


@dataclass(frozen=True)
class TaskKernel:
    """A kernel in text form.

    `tasks` is a TIR expression over the counts: the number of tasks of one run (0 is allowed). With a `counter`, the
    number of an int32 parameter, it may contain `STORED_COUNT` too: what that parameter's first element is when the
    operation starts, 0 for a negative one.
    `scratch_bytes` is the scratch memory each thread must provide. `shared` are functions the text calls that other
    kernels may call too; a module holds each of them once. `stream` is what threads without work may prefetch.
    `upward` says that a thread should run the tasks it has claimed in their order, which makes one long stream of what
    they read: for kernels that leave it to the processor to have that ready.
    """

    name: str
    params: tuple[Param, ...]
    source: str
    tasks: str
    scratch_bytes: int = 0
    shared: tuple[PrivateFunction, ...] = ()
    stream: Stream | None = None
    upward: bool = False
    counter: int | None = None


class Writer:
    """Collects indented lines of text."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = 0

    def line(self, text: str) -> None:
        """Add one line at the current indentation."""
        self._lines.append("    " * self._indent + text)

    def lines(self, texts: Iterable[str]) -> None:
        """Add several lines; their own leading spaces are kept."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head` (which ends in a colon) and indent what follows."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def text(self) -> str:
        """All lines, with a final newline."""
        return "\n".join(self._lines) + "\n"


def entry_head(name: str, params: Iterable[Param]) -> str:
    """The `def` line of a kernel's entry."""
    pointers = "".join(f"{p.name}: T.handle({p.dtype!r}), " for p in params)
    counts = "".join(f"{c}: T.int32, " for c in COUNT_NAMES)
    return f'def {name}({pointers}task: T.int32, later: T.int32, {counts}scratch: T.handle("float32")) -> T.int32:'


@contextmanager
def entry(
    w: Writer, name: str, params: Sequence[Param], buffers: Mapping[str, str], *, noalias: bool = False
) -> Iterator[None]:
    """A kernel's entry, with flat buffers over parameters or `scratch`; `buffers` maps theirs to those names.

    noalias: no memory is reached through two of the pointers.
    """
    kinds = {**{p.name: p.dtype for p in params}, "scratch": "float32"}
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head(name, params)):
        if noalias:
            w.line(_NOALIAS)
        for buffer, param in buffers.items():
            w.line(f'{buffer} = T.decl_buffer((1,), "{kinds[param]}", data={param})')
        yield
        w.line("return T.int32(0)")


@contextmanager
def function(
    w: Writer, name: str, pointers: Mapping[str, tuple[str, str]], scalars: str, *, noalias: bool = True
) -> Iterator[None]:
    """A private function: `pointers` maps buffers to (parameter, element type), `scalars` lists int32 parameters.

    noalias: as in `entry`.
    """
    w.line("@T.prim_func(private=True)")
    params = [f'{p}: T.handle("{kind}")' for p, kind in pointers.values()]
    params += [f"{s}: T.int32" for s in scalars.split()]
    with w.block(f"def {name}({', '.join(params)}) -> T.int32:"):
        if noalias:
            w.line(_NOALIAS)
        for buffer, (p, kind) in pointers.items():
            w.line(f'{buffer} = T.decl_buffer((1,), "{kind}", data={p})')
        yield
        w.line("return T.int32(0)")


def vtype(dtype: str, lanes: int) -> str:
    """TIR's spelling of a vector type: `float32x16`; one lane is the scalar type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def ramp(base: str, lanes: int) -> str:
    """A contiguous index of `lanes` elements from `base`."""
    return base if lanes == 1 else f"T.ramp({base}, 1, {lanes})"


def splat(scalar: str, lanes: int) -> str:
    """A scalar expression repeated in every lane."""
    return scalar if lanes == 1 else f"T.broadcast({scalar}, {lanes})"


@dataclass(frozen=True)
class IndexText:
    """The text of an int32 expression that Python's operators extend; `//` is for what is not negative."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: IndexText | int | str) -> IndexText:
        return self if other == 0 else IndexText(f"({self} + {other})")

    def __sub__(self, other: IndexText | int | str) -> IndexText:
        return self if other == 0 else IndexText(f"({self} - {other})")

    def __mul__(self, other: IndexText | int | str) -> IndexText:
        return IndexText(f"({self} * {other})")

    def __floordiv__(self, other: IndexText | int | str) -> IndexText:
        return IndexText(f"T.truncdiv({self}, {other})")


def f32(value: float, lanes: int = 1) -> str:
    """A float32 constant, in every lane."""
    text = f"T.float32({value!r})" if math.isfinite(value) else f'T.float32("{value!r}")'
    return splat(text, lanes)


def i32(value: int, lanes: int = 1) -> str:
    """An int32 constant, in every lane."""
    return splat(f"T.int32({value})", lanes)


def pieces(count: int) -> list[tuple[int, int]]:
    """Split `count` elements into `(offset, lanes)` with power-of-two lanes up to 16, the widest first.

    23 gives (0, 16), (16, 4), (20, 2), (22, 1).
    """
    out: list[tuple[int, int]] = []
    at, lanes = 0, 16
    while at < count:
        while lanes > count - at:
            lanes //= 2
        out.append((at, lanes))
        at += lanes
    return out


def helper_names(source: str) -> frozenset[str]:
    """Names of all LLVM helper functions that module text mentions."""
    return frozenset(_HELPER.findall(source))
