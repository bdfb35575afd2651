"""Text that readies a row of logits for sampling: mask, edits, temperature, the threshold of min-p, top-k and top-p.

The row lies in scratch memory as four arrays of `stride` floats: the values, their weights, and the values and weights
of the entries that a search has narrowed its bracket to. All three filters keep a head of the sorted row, so together
they are one number: the smallest value that may be sampled.

Both searches ask for the largest t whose entries >= t weigh enough: k with weights 1, or p of the mass with weights
exp(x - max). The search halves [lowest, maximum] over the whole row for some steps, then collects what is left between
the bounds, which are few, and halves the bracket down to neighbouring floats over those alone. Sums have a fixed order
that depends on the row's own values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Writer, f32, splat
from inferir.ir.ops.sample import LOWEST

LANES = 16
GROUP = 256  # floats that one partial sum takes in
COARSE = 12  # passes over the whole row: every entry, a guess below the maximum, then halvings
_NONE, _ZERO = f32(float("-inf"), LANES), splat("0", LANES)
GUESS = 24.0  # entries further below the maximum rarely matter


@dataclass(frozen=True)
class RowScratch:
    """Addresses (floats) of the arrays in scratch memory for a row of `valid` logits."""

    valid: int

    @property
    def padded(self) -> int:
        """Length of the row with -inf behind it, a multiple of `GROUP`."""
        return -(-self.valid // GROUP) * GROUP

    @property
    def stride(self) -> int:
        return self.padded + LANES

    @property
    def nbytes(self) -> int:
        return 4 * 4 * self.stride

    def at(self, array: int, index: str, lanes: int = LANES) -> str:
        """TIR text of `lanes` elements of array 0 (values), 1 (weights), 2 (narrowed values) or 3 (their weights)."""
        place = f"{array * self.stride} + {index}" if array else index
        return f"SCRATCH[T.ramp({place}, 1, {LANES})]" if lanes == LANES else f"SCRATCH[{place}]"


def declare(out: Writer) -> None:
    """Local cells of the texts below; `SCRATCH` is the thread's scratch memory."""
    out.line('SCRATCH = T.decl_buffer((1,), "float32", data=scratch)')
    for name in ("top", "thr", "lo", "hi", "base", "sum", "mid", "goal"):
        out.line(f'd_{name} = T.alloc_buffer((1,), "float32")')
    for name in ("n", "klo", "khi", "kmid"):
        out.line(f'd_{name} = T.alloc_buffer((1,), "int32")')
    out.line(f'd_acc = T.alloc_buffer(({LANES},), "float32")')
    out.line(f'd_part = T.alloc_buffer(({4 * LANES},), "float32")')


def _all(name: str) -> str:
    return f"d_{name}[T.ramp(0, 1, {LANES})]"


def _where(condition: str, yes: str, no: str) -> str:
    return call("inf_where", LANES, f'T.Cast("float32x{LANES}", {condition})', yes, no)


def pad(out: Writer, at: RowScratch) -> None:
    """-inf behind the row, before it is copied."""
    vectors = -(-(at.padded - at.valid) // LANES)
    if vectors:
        with out.block(f"for jp in range({vectors}):"):
            out.line(f"{at.at(0, f'{at.padded - vectors * LANES} + jp * {LANES}')} = {_NONE}")


def mask(out: Writer, at: RowScratch, bitmask: str, words: int) -> None:
    """-inf where the row's bit is clear."""
    with out.block(f"for jm in range({-(-at.valid // LANES)}):"):
        half = f"T.shift_right({bitmask}[row * {words} + T.shift_right(jm, 1)], T.bitwise_and(jm, 1) * {LANES})"
        out.line(f"m_word: T.let[T.int32] = {half}")
        bits = f"T.bitwise_and(T.shift_right({splat('m_word', LANES)}, T.ramp(0, 1, {LANES})), {splat('1', LANES)})"
        here = at.at(0, f"jm * {LANES}")
        out.line(f"{here} = {_where(f'{bits} > {_ZERO}', here, _NONE)}")


def edit(out: Writer, at: RowScratch, names: dict[str, str]) -> None:
    """Apply the row's edits in order; `names` are the buffers of the edit operands."""
    with out.block(f"for je in range({names['edit_count']}[row]):"):
        out.line(f"e_at: T.let[T.int32] = {names['edit_begin']}[row] + je")
        out.line(f"e_id: T.let[T.int32] = {names['edit_ids']}[e_at]")
        with out.block(f"if e_id >= 0 and e_id < {at.valid}:"):
            cell = at.at(0, "e_id", 1)
            out.line(f"{cell} = {cell} + {names['edit_bias']}[e_at]")
            with out.block(f"if {cell} > T.float32(0.0):"):
                out.line(f"{cell} = {cell} / {names['edit_multiplier']}[e_at]")
            with out.block("else:"):
                out.line(f"{cell} = {cell} * {names['edit_multiplier']}[e_at]")
            out.line(f"{cell} = {cell} - {names['edit_offset']}[e_at]")


def scale(out: Writer, at: RowScratch, heat: str) -> None:
    """Divide by the temperature, make NaN -inf, and find the maximum."""
    out.line(f"{_all('acc')} = {_NONE}")
    with out.block(f"for js in range({at.padded // LANES}):"):
        here = at.at(0, f"js * {LANES}")
        out.line(f"{here} = {call('inf_vmax', LANES, f'{here} / {splat(heat, LANES)}', _NONE)}")
        out.line(f"{_all('acc')} = {call('inf_vmax', LANES, here, _all('acc'))}")
    out.line(f"d_top[0] = {call('inf_hmax', LANES, _all('acc'))}")


def limited(at: RowScratch, given: Mapping[str, str]) -> str:
    """Whether a row has a filter that may remove something; `given` are its sampling parameters by name."""
    k, p, low = given["top_k"], given["top_p"], given["min_p"]
    return f"({k} > 0 and {k} < {at.valid}) or {p} < T.float32(1.0) or {low} > T.float32(0.0)"


def threshold(out: Writer, at: RowScratch, given: Mapping[str, str]) -> None:
    """`d_thr[0]`: the smallest value of the row that may be sampled; `given` are its sampling parameters by name."""
    top_k, top_p, min_p = given["top_k"], given["top_p"], given["min_p"]
    out.line(f"d_thr[0] = {f32(LOWEST)}")
    with out.block(f"if d_top[0] >= {f32(LOWEST)} and d_top[0] <= {f32(-LOWEST)}:"):
        with out.block(f"if {min_p} > T.float32(0.0):"):
            out.line(f"d_thr[0] = T.max(d_thr[0], d_top[0] + {call('inf_log', 1, min_p)})")
        with out.block("for phase in range(2):"):
            wanted = f"(phase == 0 and {top_k} > 0 and {top_k} < {at.valid})"
            with out.block(f"if {wanted} or (phase == 1 and {top_p} < T.float32(1.0)):"):
                _weights(out, at)
                out.line(f'd_goal[0] = T.Cast("float32", {top_k})')
                _coarse(out, at, top_p)
                _collect(out, at)
                _fine(out, at)
                out.line("d_thr[0] = d_lo[0]")


def _weights(out: Writer, at: RowScratch) -> None:
    with out.block("if phase == 0:"), out.block(f"for jw in range({at.padded // LANES}):"):
        out.line(f"{at.at(1, f'jw * {LANES}')} = {f32(1.0, LANES)}")
    with out.block("else:"), out.block(f"for jw in range({at.padded // LANES}):"):
        exponent = f"{at.at(0, f'jw * {LANES}')} - {splat('d_top[0]', LANES)}"
        out.line(f"{at.at(1, f'jw * {LANES}')} = {call('inf_exp', LANES, exponent)}")


def _coarse(out: Writer, at: RowScratch, top_p: str) -> None:
    """Bounds lo (weighs enough) and hi (does not), from passes over the whole row; base is what lies above hi."""
    out.line("d_lo[0] = d_thr[0]")
    _key(out, "d_khi", "d_top[0]")
    out.line(f"d_hi[0] = {_float('d_khi[0] + 1')}")
    out.line("d_base[0] = T.float32(0.0)")
    with out.block(f"for jc in range({COARSE}):"), out.block("if d_hi[0] > d_lo[0]:"):
        out.line("d_mid[0] = T.float32(0.5) * d_lo[0] + T.float32(0.5) * d_hi[0]")
        with out.block("if jc == 0:"):
            out.line("d_mid[0] = d_lo[0]")
        with out.block("if jc == 1:"):
            out.line(f"d_mid[0] = T.max(d_lo[0], d_top[0] - T.float32({GUESS}))")
        _sum(out, at)
        with out.block("if jc == 0 and phase == 1:"):
            out.line(f"d_goal[0] = {top_p} * d_sum[0]")
        with out.block("if d_sum[0] >= d_goal[0]:"):
            out.line("d_lo[0] = d_mid[0]")
        with out.block("else:"):
            out.line("d_hi[0] = d_mid[0]")
            out.line("d_base[0] = d_sum[0]")


def _sum(out: Writer, at: RowScratch) -> None:
    """`d_sum[0]`: weight of the entries >= `d_mid[0]`, in groups so that rounding errors stay small."""
    out.line(f"{_all('acc')} = {f32(0.0, LANES)}")
    part = f"d_part[T.ramp(c * {LANES}, 1, {LANES})]"
    with out.block(f"for jg in range({at.padded // GROUP}):"):
        with out.block("for c in T.unroll(4):"):
            out.line(f"{part} = {f32(0.0, LANES)}")
        with out.block(f"for i in range({GROUP // LANES // 4}):"), out.block("for c in T.unroll(4):"):
            where = f"jg * {GROUP} + i * {4 * LANES} + c * {LANES}"
            chosen = _where(f"{at.at(0, where)} >= {splat('d_mid[0]', LANES)}", at.at(1, where), f32(0.0, LANES))
            out.line(f"{part} = {part} + {chosen}")
        with out.block("for c in T.unroll(4):"):
            out.line(f"{_all('acc')} = {_all('acc')} + {part}")
    out.line(f"d_sum[0] = {call('inf_hsum', LANES, _all('acc'))}")


def _collect(out: Writer, at: RowScratch) -> None:
    """Copy the entries in [lo, hi) and their weights, in order, with neutral entries behind them."""
    out.line("d_n[0] = 0")
    with out.block(f"for jv in range({at.padded // LANES}):"):
        here = at.at(0, f"jv * {LANES}")
        below = _where(f"{here} < {splat('d_hi[0]', LANES)}", here, _NONE)
        some = f"if {call('inf_hmax', LANES, below)} >= d_lo[0]:"
        with out.block(some), out.block(f"for lane in range({LANES}):"):
            one = f"jv * {LANES} + lane"
            with out.block(f"if {at.at(0, one, 1)} >= d_lo[0] and {at.at(0, one, 1)} < d_hi[0]:"):
                out.line(f"{at.at(2, 'd_n[0]', 1)} = {at.at(0, one, 1)}")
                out.line(f"{at.at(3, 'd_n[0]', 1)} = {at.at(1, one, 1)}")
                out.line("d_n[0] = d_n[0] + 1")
    out.line(f"{at.at(2, 'd_n[0]')} = {_NONE}")
    out.line(f"{at.at(3, 'd_n[0]')} = {f32(0.0, LANES)}")


def _fine(out: Writer, at: RowScratch) -> None:
    """Halve [lo, hi) down to neighbouring floats, over the collected entries."""
    _key(out, "d_klo", "d_lo[0]")
    _key(out, "d_khi", "d_hi[0]")
    with out.block("for jf in range(33):"), out.block("if d_khi[0] > d_klo[0] + 1:"):
        # The mean rounded down, without overflow.
        both, half = "T.bitwise_and(d_klo[0], d_khi[0])", "T.shift_right(T.bitwise_xor(d_klo[0], d_khi[0]), 1)"
        out.line(f"d_kmid[0] = {both} + {half}")
        out.line(f"d_mid[0] = {_float('d_kmid[0]')}")
        out.line(f"{_all('acc')} = {f32(0.0, LANES)}")
        with out.block(f"for jk in range(T.truncdiv(d_n[0] + {LANES - 1}, {LANES})):"):
            value, weight = at.at(2, f"jk * {LANES}"), at.at(3, f"jk * {LANES}")
            chosen = _where(f"{value} >= {splat('d_mid[0]', LANES)}", weight, f32(0.0, LANES))
            out.line(f"{_all('acc')} = {_all('acc')} + {chosen}")
        with out.block(f"if d_base[0] + {call('inf_hsum', LANES, _all('acc'))} >= d_goal[0]:"):
            out.line("d_klo[0] = d_kmid[0]")
        with out.block("else:"):
            out.line("d_khi[0] = d_kmid[0]")
    out.line(f"d_lo[0] = {_float('d_klo[0]')}")


def _key(out: Writer, cell: str, value: str) -> None:
    """An integer in the order of the floats: the bits, with all but the sign flipped where they are negative."""
    out.line(f'{cell}[0] = T.reinterpret("int32", {value})')
    out.line(f"{cell}[0] = {_flip(f'{cell}[0]')}")


def _flip(bits: str) -> str:
    return f"T.bitwise_xor({bits}, T.bitwise_and(T.shift_right({bits}, 31), T.int32(0x7FFFFFFF)))"


def _float(key: str) -> str:
    return f'T.reinterpret("float32", {_flip(f"({key})")})'
