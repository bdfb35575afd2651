"""Softmax states of splits: how two of them become one, how they are kept, and the kernel that makes results of them.

A split is `SPLIT` absolute positions (`inferir.ir.contract.split_kv`). The workspace has a row per token and split,
with the states of all heads: accumulators [heads, dims], sums [heads, 16], maxima [heads].
"""

from __future__ import annotations

from collections.abc import Sequence

from inferir.codegen.tvm.kernels.attention_parts import (
    LOWEST,
    AttentionShape,
    clear_rows,
    each,
    finish_rows,
    state_pointers,
)
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import (
    Param,
    PrivateFunction,
    TaskKernel,
    Writer,
    entry_head,
    f32,
    function,
    ramp,
    splat,
)
from inferir.ir.contract.split_kv import ITEM_WIDTH, SPLIT

_HEADS = 16  # heads that a task merges


def row_floats(s: AttentionShape) -> int:
    """Floats of a workspace row."""
    return s.heads * (s.dims + 16) + -(-s.heads // 16) * 16


def workspace_bytes(s: AttentionShape, rows: int) -> int:
    return 4 * rows * row_floats(s)


def state_at(s: AttentionShape, buffer: str, base: str, head: str) -> str:
    """Addresses of the accumulators, sums and maxima from `head` on in the workspace row at `base` (int64)."""
    starts = (f"{head} * {s.dims}", f"{s.heads * s.dims} + {head} * 16", f"{s.heads * (s.dims + 16)} + {head}")
    return ", ".join(f"T.address_of({buffer}[{base} + T.cast({at}, 'int64')])" for at in starts)


def merge_rows(s: AttentionShape) -> PrivateFunction:
    """total[r] becomes the state of total[r] and the later state[r]; a state that has seen nothing changes no bit."""
    w = Writer()
    name = f"attention_merge_{s.dims}"
    sums = "T.ramp(r * 16, 1, 16)"

    def copy(i: str, lanes: int) -> str:
        at = ramp(f"r * {s.dims} + {i}", lanes)
        return f"TOTAL_ACC[{at}] = ACC[{at}]"

    def merge(buffer: str, at: str, lanes: int) -> str:
        later = f"{buffer}[{at}] * {splat('after', lanes)}"
        return (
            f"TOTAL_{buffer}[{at}] = {call('inf_fma', lanes, f'TOTAL_{buffer}[{at}]', splat('before', lanes), later)}"
        )

    pointers = state_pointers("TOTAL_") | state_pointers("")
    with function(w, name, pointers, "height"), w.block("for r in range(height):"):
        w.line("old: T.let[T.float32] = TOTAL_MAX[r]")
        w.line("late: T.let[T.float32] = MAX[r]")
        with w.block(f"if late != {f32(LOWEST)}:"):
            with w.block(f"if old == {f32(LOWEST)}:"):
                each(w, s.dims, copy)
                w.line(f"TOTAL_SUM[{sums}] = SUM[{sums}]")
                w.line("TOTAL_MAX[r] = late")
            with w.block("else:"):
                w.line(f"new: T.let[T.float32] = {call('inf_vmax', 1, 'late', 'old')}")
                w.line(f"before: T.let[T.float32] = {call('inf_exp2_neg', 1, 'old - new')}")
                w.line(f"after: T.let[T.float32] = {call('inf_exp2_neg', 1, 'late - new')}")
                each(w, s.dims, lambda i, n: merge("ACC", ramp(f"r * {s.dims} + {i}", n), n))
                w.line(merge("SUM", sums, 16))
                w.line("TOTAL_MAX[r] = new")
    return PrivateFunction(name, w.text())


def store_rows(s: AttentionShape) -> PrivateFunction:
    """Write a tile's states to the workspace row of its first token and those after it; row r has head r % group."""
    w = Writer()
    name = f"attention_store_{s.heads}_{s.dims}"
    pointers = {"OUT": ("out", "float32"), **state_pointers("")}
    with function(w, name, pointers, "height group first_head"), w.block("for r in range(height):"):
        w.line(f"base: T.let[T.int32] = T.truncdiv(r, group) * {row_floats(s)}")
        w.line("head: T.let[T.int32] = first_head + T.truncmod(r, group)")

        def store(i: str, lanes: int) -> str:
            return f"OUT[{ramp(f'base + head * {s.dims} + {i}', lanes)}] = ACC[{ramp(f'r * {s.dims} + {i}', lanes)}]"

        each(w, s.dims, store)
        w.line(f"OUT[{ramp(f'base + {s.heads * s.dims} + head * 16', 16)}] = SUM[T.ramp(r * 16, 1, 16)]")
        w.line(f"OUT[base + {s.heads * (s.dims + 16)} + head] = MAX[r]")
    return PrivateFunction(name, w.text())


def merge_kernel(name: str, s: AttentionShape, params: Sequence[Param], out_row_stride: int) -> TaskKernel:
    """Writes the results of the tokens whose splits have items of their own, after all of these have run.

    A task is one of the first n_m work items and up to 16 heads. Parameters are those of the attention kernel.
    """
    parts = -(-s.heads // _HEADS)
    most = min(s.heads, _HEADS)
    sums = most * s.dims
    total = ", ".join(f"T.address_of(SCRATCH[{at}])" for at in (0, sums, sums + most * 16))
    clear, merge, finish = clear_rows(s), merge_rows(s), finish_rows(s)
    w = Writer()
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head(name, params)):
        for p in params:
            w.line(f'{p.name}_b = T.decl_buffer((1,), "{p.dtype}", data={p.name})')
        w.line('SCRATCH = T.decl_buffer((1,), "float32", data=scratch)')
        w.line(f"item: T.let[T.int32] = T.truncdiv(task, {parts}) * {ITEM_WIDTH}")
        w.line(f"head: T.let[T.int32] = T.truncmod(task, {parts}) * {_HEADS}")
        w.line(f"heads: T.let[T.int32] = T.min({_HEADS}, {s.heads} - head)")
        for i, field in ((1, "row"), (2, "count"), (3, "position"), (5, "partial")):
            w.line(f"{field}: T.let[T.int32] = attn_items_b[item + {i}]")
        w.line(f"splits: T.let[T.int32] = T.truncdiv(position + count + {SPLIT - 1}, {SPLIT})")
        with w.block("for t in range(count):"):
            w.line(f"T.evaluate(Mod.{clear.name}({total}, heads))")
            with w.block("for j in range(splits):"):
                w.line(f"base: T.let[T.int64] = T.cast(partial + j * count + t, 'int64') * {row_floats(s)}")
                later = state_at(s, "workspace_b", "base", "head")
                w.line(f"T.evaluate(Mod.{merge.name}({total}, {later}, heads))")
            out = f"out_b[T.cast(row + t, 'int64') * {out_row_stride} + T.cast(head * {s.v_dim}, 'int64')]"
            args = f"T.address_of({out}), {', '.join(total.split(', ')[:2])}, heads, heads, {out_row_stride}"
            w.line(f"T.evaluate(Mod.{finish.name}({args}))")
        w.line("return T.int32(0)")
    scratch = 4 * most * (s.dims + 17)
    return TaskKernel(name, tuple(params), w.text(), f"n_m * {parts}", scratch, (clear, merge, finish))
