"""Row reductions: vector accumulators in a fixed lane order, folded to one number at the end of the row.

The order of a reduction depends on the row length alone. Every width of the sweep (16 lanes, then the power-of-two
tails) has its own accumulator; they are folded from the widest to the narrowest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Writer, f32, i32, ramp
from inferir.ir.errors import CodegenError

_START = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf}


@dataclass
class Accumulator:
    """One reduction's accumulators. `name` prefixes its buffers, `kind` is sum, mean, max, min or argmax."""

    name: str
    kind: str
    widths: list[int] = field(default_factory=list)

    def _buffer(self, lanes: int) -> str:
        return f"{self.name}_{lanes}"

    def declare(self, out: Writer, widths: list[int]) -> None:
        """Allocate the buffers, once per function, for the lane counts the sweep uses."""
        self.widths = sorted(set(widths), reverse=True)
        for lanes in self.widths:
            out.line(f'{self._buffer(lanes)} = T.alloc_buffer(({lanes},), "float32")')
            if self.kind == "argmax":
                out.line(f'{self._buffer(lanes)}i = T.alloc_buffer(({lanes},), "int32")')
        if self.kind == "argmax":  # what it folds into
            out.line(f'{self.name}_best = T.alloc_buffer((1,), "float32")')
            out.line(f'{self.name}_index = T.alloc_buffer((1,), "int32")')

    def reset(self, out: Writer) -> None:
        for lanes in self.widths:
            out.line(f"{self._buffer(lanes)}[{ramp('0', lanes)}] = {f32(_START[self.kind], lanes)}")
            if self.kind == "argmax":
                out.line(f"{self._buffer(lanes)}i[{ramp('0', lanes)}] = {i32(0x7FFFFFFF, lanes)}")

    def update(self, out: Writer, value: str, lanes: int, position: str) -> None:
        """Take in `lanes` values that start at `position` of the row."""
        at = f"{self._buffer(lanes)}[{ramp('0', lanes)}]"
        if self.kind in ("sum", "mean"):
            out.line(f"{at} = {at} + {value}")
        elif self.kind in ("max", "min"):
            out.line(f"{at} = {call(f'inf_{self.kind}', lanes, at, value)}")
        else:
            index = f"{self._buffer(lanes)}i[{ramp('0', lanes)}]"
            here = ramp(position, lanes)
            out.line(f"{index} = T.Select({value} > {at}, {here}, {index})")
            out.line(f"{at} = T.Select({value} > {at}, {value}, {at})")

    def finish(self, out: Writer, count: int) -> str:
        """Fold all lanes; returns the expression of the result (for argmax the index of the first maximum)."""
        if self.kind == "argmax":
            return self._finish_argmax(out)
        fold = {"sum": "inf_hsum", "mean": "inf_hsum", "max": "inf_hmax", "min": "inf_hmax"}[self.kind]
        total = ""
        for lanes in self.widths:
            vector = f"{self._buffer(lanes)}[{ramp('0', lanes)}]"
            if lanes == 1:
                part = vector
            elif self.kind == "min":
                part = f"T.float32(-1.0) * {call(fold, lanes, f'{f32(-1.0, lanes)} * {vector}')}"
            else:
                part = call(fold, lanes, vector)
            if not total:
                total = part
            elif self.kind in ("max", "min"):
                total = f"T.{self.kind}({total}, {part})"
            else:
                total = f"({total}) + {part}"
        if not total:
            raise CodegenError("a reduction over an empty axis has no kernel")
        return f"({total}) / T.float32({float(count)})" if self.kind == "mean" else total

    def _finish_argmax(self, out: Writer) -> str:
        best, index = f"{self.name}_best", f"{self.name}_index"
        first = self.widths[0]
        out.line(f"{best}[0] = {self._buffer(first)}[0]")
        out.line(f"{index}[0] = {self._buffer(first)}i[0]")
        for lanes in self.widths:
            with out.block(f"for lane_{self.name} in range({lanes}):"):
                value, at = f"{self._buffer(lanes)}[lane_{self.name}]", f"{self._buffer(lanes)}i[lane_{self.name}]"
                better = f"{value} > {best}[0] or ({value} == {best}[0] and {at} < {index}[0])"
                with out.block(f"if {better}:"):
                    out.line(f"{best}[0] = {value}")
                    out.line(f"{index}[0] = {at}")
        return f"{index}[0]"
