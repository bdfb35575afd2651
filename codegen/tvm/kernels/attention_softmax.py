"""The online softmax step of a paged attention kernel (see `attention.py`), a private function on a row tile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferir.codegen.tvm.kernels.attention_parts import SEGMENT, AttentionShape
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import IndexText, PrivateFunction, Writer, f32, function, splat
from inferir.ir.contract.kv_reads import Reads

_LANE = "T.ramp(0, 1, 16)"
_SUM = "T.ramp(r * 16, 1, 16)"
_BF16_ONES = splat("T.int32(0x3F803F80)", 16)


def update_softmax(name: str, s: AttentionShape, *, reads: Reads, softcap: float, scale: float) -> PrivateFunction:
    """One online softmax step of every row over the score vectors from_vec .. to_vec (even) of the segment at `base`.

    Scores become weights 2^(score - maximum), 0 where masked; sums and maxima are brought to the new maximum, and the
    accumulators will be by the factors left for `weighted_sum`. Sums add the weights as stored, so that rounded weights
    still add up to one. Only vectors at the edges of what a row sees are masked. `scale` (positive) and log2(e) are not
    in stored scores but in the exponent, except with a soft cap.
    """
    step = _Step(reads, softcap, scale)
    name = f"{name}_softmax"
    pointers = {p.upper(): (p, "float32") for p in ("scores", "factors", "sums", "maxima")}
    w = Writer()
    # Two loops over rows, in each of which the processor works on several at once: one row is a chain of latencies.
    with function(w, name, pointers, "height group position base from_vec to_vec"):
        with w.block("for r in range(height):"):
            step.find_maximum(w)
        with w.block("for i in range(T.shift_right(height + 15, 4)):"):
            factors = "FACTORS[T.ramp(i * 16, 1, 16)]"
            w.line(f"{factors} = {call('inf_exp2_neg', 16, factors)}")
        with w.block("for r in range(height):"):
            step.weigh(w, s.dtype)
    return PrivateFunction(name, w.text())


def _score(vector: str) -> str:
    """A score vector of row r, counted within its segment."""
    return f"SCORES[T.ramp(r * {SEGMENT} + ({vector}) * 16, 1, 16)]"


@dataclass(frozen=True)
class _Step:
    """Writes the loops over one row r."""

    reads: Reads
    softcap: float
    scale: float

    @property
    def first(self) -> IndexText | None:
        """The first position that row r reads, counted as `last` within the segment; None where it reads all."""
        shift: int | str = 0 if self.reads.period == 1 else "base"  # rules of period 1 hold within the segment, too
        first = self.reads.first(IndexText("last") + shift)
        return first - shift if isinstance(first, IndexText) else None

    @property
    def unit(self) -> float:
        """What stored scores are multiplied by to be exponents of two."""
        return 1.0 if self.softcap else self.scale * math.log2(math.e)

    def find_maximum(self, w: Writer) -> None:
        """Bring MAXIMA[r] up to date, and leave in FACTORS[r] the exponent of the factor for what was summed before."""
        w.line("last: T.let[T.int32] = position + T.truncdiv(r, group) - base")
        for i in range(2):
            w.line(f'top{i} = T.alloc_buffer((16,), "float32")')
            w.line(f"top{i}[{_LANE}] = {f32(-math.inf, 16)}")
        first = "from_vec"
        if self.first is not None:
            seen = f"T.shift_right(T.max(0, {self.first + 15}), 4)"
            first = f"T.max(from_vec, T.bitwise_and({seen} + 1, -2))"
        w.line(f"first_whole: T.let[T.int32] = T.min(to_vec, {first})")
        end = "T.bitwise_and(T.shift_right(T.max(0, last + 1), 4), -2)"
        w.line(f"end_whole: T.let[T.int32] = T.min(to_vec, T.max(first_whole, {end}))")
        if self.first is not None:
            self._over_edges(w, "from_vec", "first_whole")
        self._over_whole(w)
        self._over_edges(w, "end_whole", "to_vec")
        w.line("old: T.let[T.float32] = MAXIMA[r]")
        both = call("inf_vmax", 16, f"top0[{_LANE}]", f"top1[{_LANE}]")
        top = f"{call('inf_hmax', 16, both)} * {f32(self.unit)}"
        w.line(f"new: T.let[T.float32] = {call('inf_vmax', 1, top, 'old')}")
        w.line("MAXIMA[r] = new")
        w.line("FACTORS[r] = old - new")

    def _over_whole(self, w: Writer) -> None:
        with w.block("for v in T.serial(T.shift_right(first_whole, 1), T.shift_right(end_whole, 1)):"):
            for i in range(2):
                score = _score(f"v * 2 + {i}")
                w.line(f"x{i}: T.let = {self._capped(score)}")
                if self.softcap:
                    w.line(f"{score} = x{i}")
                w.line(f"top{i}[{_LANE}] = {call('inf_vmax', 16, f'top{i}[{_LANE}]', f'x{i}')}")

    def _over_edges(self, w: Writer, first: str, end: str) -> None:
        with w.block(f"for v in T.serial({first}, {end}):"):
            w.line("lanes: T.let = T.ramp(v * 16, 1, 16)")
            visible = f"lanes <= {splat('last', 16)}"
            if self.first is not None:
                visible = f"T.And({visible}, lanes > {splat(str(self.first - 1), 16)})"
            w.line(f"x: T.let = T.Select({visible}, {self._capped(_score('v'))}, {f32(-math.inf, 16)})")
            w.line(f"{_score('v')} = x")
            w.line(f"top0[{_LANE}] = {call('inf_vmax', 16, f'top0[{_LANE}]', 'x')}")

    def _capped(self, score: str) -> str:
        if not self.softcap:
            return score
        inner = call("inf_tanh", 16, f"{score} * {f32(self.scale / self.softcap, 16)}")
        return f"{inner} * {f32(self.softcap * math.log2(math.e), 16)}"

    def weigh(self, w: Writer, dtype: str) -> None:
        """Turn the row's scores into weights and add them to SUMS[r]."""
        w.line(f"minus: T.let = {splat('-MAXIMA[r]', 16)}")
        w.line('part = T.alloc_buffer((16,), "float32")')
        w.line(f"part[{_LANE}] = {f32(0.0, 16)}")
        if dtype == "bf16":
            with w.block("for v in T.serial(T.shift_right(from_vec, 1), T.shift_right(to_vec, 1)):"):
                halves = (self._exponent(f"v * 2 + {i}") for i in range(2))
                pairs = call("inf_join_bf16", 16, *(call("inf_exp2_weight", 16, x) for x in halves))
                w.line(f"p: T.let = {pairs}")
                w.line(f"part[{_LANE}] = {call('inf_dot_bf16', 16, f'part[{_LANE}]', 'p', _BF16_ONES)}")
                w.line(f"{_score('v')} = T.reinterpret('float32x16', p)")
        else:
            with w.block("for v in T.serial(from_vec, to_vec):"):
                w.line(f"p: T.let = {call('inf_exp2_neg', 16, self._exponent('v'))}")
                w.line(f"part[{_LANE}] = part[{_LANE}] + p")
                w.line(f"{_score('v')} = p")
        w.line(f"SUMS[{_SUM}] = SUMS[{_SUM}] * {splat('FACTORS[r]', 16)} + part[{_LANE}]")

    def _exponent(self, vector: str) -> str:
        return call("inf_fma", 16, _score(vector), f32(self.unit, 16), "minus")
