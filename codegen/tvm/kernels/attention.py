"""Paged attention: softmax(q kᵀ · scale) v over the blocks of a KV cache, causal, optionally soft-capped.

Layouts (kp is 2 for bf16, 1 for f32; a block holds `block_size` tokens, a multiple of 16)::

    K cache [blocks, kv_heads, head_dim / kp, block_size, kp]   lanes are tokens: 16 scores per register
    V cache [blocks, kv_heads, block_size / kp, v_dim, kp]      lanes are dims: 16 outputs per register

A work item is a row of `attn_items`: (sequence, first token row of this step, tokens, position of that token, split,
partial row). A task is one work item, one KV head and one part of its query heads (a single part unless the group is
large). Its (token, query head) pairs are rows, handled in row tiles that stay in registers; each tile sweeps the
sequence in segments of fixed absolute positions: scores, running maximum and sum (online softmax, Milakov & Gimelshein
2018, with powers of two), then the weighted sum of V.

The state of that sweep starts anew with every split, and states are merged in the order of splits: by the sweep, or,
for items that stand for one split only, by a second kernel (`attention_merge.py`) from where the items left them, so
that several threads can work on one sequence (Dao et al. 2023, "Flash-Decoding"; there, the cuts depend on the batch).

A row's result has the same bits however its tokens were split into items and tiles: segments and splits start at
multiples of `SEGMENT` and `SPLIT`, masked positions have the weight 0 exactly, and a segment, block or split that is
masked for a row leaves its state as it was (maxima start at a finite -1e30, so the factor for the old state is exactly
1).

Memory of positions that were never written may hold anything: scores of masked positions are replaced, not multiplied,
V is not read past the last visible position, and in the last bf16 pair the other half is masked out.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.tvm.kernels.attention_merge import merge_kernel, merge_rows, row_floats, store_rows
from inferir.codegen.tvm.kernels.attention_parts import (
    SEGMENT,
    AttentionShape,
    clear_rows,
    finish_rows,
    load_queries,
    scores,
    weighted_sum,
)
from inferir.codegen.tvm.kernels.attention_softmax import update_softmax
from inferir.codegen.tvm.kernels.microkernel import micro_kernel
from inferir.codegen.tvm.source import IndexText, Param, PrivateFunction, TaskKernel, Writer, entry_head
from inferir.ir.contract.kv_reads import Reads
from inferir.ir.contract.split_kv import ITEM_WIDTH, SPLIT
from inferir.ir.errors import CodegenError

_SEGMENTS = SPLIT // SEGMENT  # per split


@dataclass(frozen=True)
class _Rows:
    """How a group's (token, head) pairs are cut into row tiles.

    parts: parts of the group, each its own task; tokens: most tokens of a tile; heights: all row counts of tiles.
    """

    parts: int
    tokens: int
    heights: tuple[int, ...]

    def one_token(self, height: int) -> bool:
        """Whether tiles of this height hold a single token, as in decoding."""
        return self.tokens == 1 or height == self.heights[-1]


def _row_tiles(group: int, tile_tokens: int, tallest: int) -> _Rows:
    if group > tallest:
        parts = -(-group // tallest)
        return _Rows(parts, 1, tuple(sorted({-(-group // parts), group // parts}, reverse=True)))
    tokens = min(tallest // group, tile_tokens)
    return _Rows(1, tokens, tuple(group * t for t in range(tokens, 0, -1)))


@dataclass(frozen=True)
class _Scratch:
    """How many floats the parts of scratch memory take together, and the TIR address of each."""

    floats: int
    queries: str
    scores: str
    factors: str
    acc: str
    sums: str
    maxima: str
    total_acc: str
    total_sums: str
    total_maxima: str

    @property
    def state(self) -> str:
        """The state of the running split."""
        return f"{self.acc}, {self.sums}, {self.maxima}"

    @property
    def total(self) -> str:
        """The state of the splits before it, in row tiles that see several."""
        return f"{self.total_acc}, {self.total_sums}, {self.total_maxima}"


def _scratch(s: AttentionShape, height: int) -> _Scratch:
    state = (height * s.dims, height * 16, height)
    sizes = (height * s.words, height * SEGMENT, height, *state, *state)
    starts = [sum(-(-size // 16) * 16 for size in sizes[:i]) for i in range(len(sizes) + 1)]
    return _Scratch(starts[-1], *(f"T.address_of(SCRATCH[{i}])" for i in starts[:-1]))


def attention_kernels(
    name: str,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_dim: int,
    block_size: int,
    reads: Reads,
    softcap: float,
    scale: float,
    dtype: str,
    q_row_stride: int,
    out_row_stride: int,
    tile_tokens: int,
    max_blocks_per_seq: int,
    features: frozenset[str],
) -> tuple[TaskKernel, TaskKernel]:
    """Two kernels to run one after the other: attention, and the merging of what items of single splits have left.

    Both have the parameters q, kcache, vcache, block_tables, attn_items, out, workspace. q and the caches are int32
    pairs for bf16 (out is uint16), float32 for f32. The workspace holds `workspace_bytes`. Row strides count elements.
    `tile_tokens` is the most tokens of a work item; `max_blocks_per_seq` the row length of block_tables, which begin at
    a multiple of `reads.period`; softcap 0 means none. Raises `CodegenError` naming the kernel for sizes that it cannot
    take.
    """
    s = AttentionShape(heads, kv_heads, head_dim, v_dim, block_size, dtype)
    _check(name, s, scale, q_row_stride)
    rows = _row_tiles(s.group, tile_tokens, micro_kernel("panels", dtype).single_rows(features))
    score = {h: scores(s, h, features, rows.one_token(h)) for h in rows.heights}
    weigh = {h: weighted_sum(s, h, features, rows.one_token(h)) for h in rows.heights}
    load, clear, merge, store, finish = load_queries(s), clear_rows(s), merge_rows(s), store_rows(s), finish_rows(s)
    softmax = update_softmax(name, s, reads=reads, softcap=softcap, scale=scale)
    at = _scratch(s, rows.heights[0])
    params = (
        *(Param(p, s.memory) for p in ("q", "kcache", "vcache")),
        *(Param(p, "int32") for p in ("block_tables", "attn_items")),
        Param("out", "uint16" if dtype == "bf16" else "float32"),
        Param("workspace", "float32"),
    )
    w = Writer()
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head(name, params)):
        for p in params:
            w.line(f'{p.name}_b = T.decl_buffer((1,), "{p.dtype}", data={p.name})')
        w.line('SCRATCH = T.decl_buffer((1,), "float32", data=scratch)')
        _read_item(w, s, rows)
        _later_piece(w, s, rows, reads, max_blocks_per_seq)
        with w.block("for t in range(tiles):"):
            _tile_bounds(w, reads)
            stride = q_row_stride // s.pair
            q = f"q_b[T.cast(row, 'int64') * {stride} + T.cast(first_head, 'int64') * {s.words}]"
            w.line(f"T.evaluate(Mod.{load.name}(T.address_of({q}), {at.queries}, height, group, {stride}))")
            w.line(f"T.evaluate(Mod.{clear.name}({at.state}, height))")
            with w.block("if several == 1:"):
                w.line(f"T.evaluate(Mod.{clear.name}({at.total}, height))")
            with w.block("for c in T.serial(from_segment, to_segment):"):
                with w.block(f"if T.And(c > from_segment, T.truncmod(c, {_SEGMENTS}) == 0):"):
                    w.line(f"T.evaluate(Mod.{merge.name}({at.total}, {at.state}, height))")
                    w.line(f"T.evaluate(Mod.{clear.name}({at.state}, height))")
                _segment(w, s, at, max_blocks_per_seq, rows, score, softmax, weigh)
            out = f"out_b[T.cast(row, 'int64') * {out_row_stride} + T.cast(first_head, 'int64') * {v_dim}]"
            rest = f"height, group, {out_row_stride}"
            with w.block("if split >= 0:"):
                kept = f"workspace_b[T.cast(partial + first, 'int64') * {row_floats(s)}]"
                w.line(f"T.evaluate(Mod.{store.name}(T.address_of({kept}), {at.state}, height, group, first_head))")
            with w.block("elif several == 1:"):
                w.line(f"T.evaluate(Mod.{merge.name}({at.total}, {at.state}, height))")
                w.line(f"T.evaluate(Mod.{finish.name}(T.address_of({out}), {at.total_acc}, {at.total_sums}, {rest}))")
            with w.block("else:"):
                w.line(f"T.evaluate(Mod.{finish.name}(T.address_of({out}), {at.acc}, {at.sums}, {rest}))")
        w.line("return T.int32(0)")
    shared = (load, clear, softmax, *score.values(), *weigh.values(), merge, store, finish)
    attend = TaskKernel(name, params, w.text(), f"n_a * {kv_heads * rows.parts}", 4 * at.floats, shared)
    return attend, merge_kernel(f"{name}_merge", s, params, out_row_stride)


def _check(name: str, s: AttentionShape, scale: float, q_row_stride: int) -> None:
    if s.heads % s.kv_heads:
        raise CodegenError(f"{name}: {s.heads} query heads are no multiple of {s.kv_heads} KV heads")
    if scale <= 0:
        raise CodegenError(f"{name}: the scale {scale} is not positive")
    if s.block_size % 16 or SEGMENT % s.block_size:
        raise CodegenError(f"{name}: block size {s.block_size} is no multiple of 16 that divides {SEGMENT}")
    if s.head_dim % s.pair or q_row_stride % s.pair:
        raise CodegenError(f"{name}: head dim {s.head_dim} and row stride {q_row_stride} must be even for bf16")


def _read_item(w: Writer, s: AttentionShape, rows: _Rows) -> None:
    """From the task number to the work item, KV head, query heads, and the number of row tiles."""
    w.line(f"item: T.let[T.int32] = T.truncdiv(task, {s.kv_heads * rows.parts}) * {ITEM_WIDTH}")
    w.line(f"head: T.let[T.int32] = T.truncmod(T.truncdiv(task, {rows.parts}), {s.kv_heads})")
    w.line(f"part: T.let[T.int32] = T.truncmod(task, {rows.parts})")
    small, more = divmod(s.group, rows.parts)
    w.line(f"first_head: T.let[T.int32] = head * {s.group} + part * {small} + T.min(part, {more})")
    w.line(f"group: T.let[T.int32] = {small} + T.cast(part < {more}, 'int32')")
    for i, field in enumerate(("seq", "first_row", "count", "start", "split", "partial")):
        w.line(f"{field}: T.let[T.int32] = attn_items_b[item + {i}]")
    w.line(f"tiles: T.let[T.int32] = T.truncdiv(count + {rows.tokens - 1}, {rows.tokens})")
    w.line("low: T.let[T.int32] = T.truncdiv(count, T.max(tiles, 1))")
    w.line("longer: T.let[T.int32] = count - low * tiles")


def _later_piece(w: Writer, s: AttentionShape, rows: _Rows, reads: Reads, max_blocks_per_seq: int) -> None:
    """The index in K of what the task `later` reads first."""
    per_item = s.kv_heads * rows.parts
    w.line(f"another: T.let[T.int32] = T.min(later, n_a * {per_item} - 1)")
    w.line(f"its_item: T.let[T.int32] = T.truncdiv(another, {per_item}) * {ITEM_WIDTH}")
    w.line(f"its_head: T.let[T.int32] = T.truncmod(T.truncdiv(another, {rows.parts}), {s.kv_heads})")
    begin = _not_before(f"T.max(attn_items_b[its_item + 4], 0) * {SPLIT}", reads, "attn_items_b[its_item + 3]")
    block = f"T.truncdiv({begin}, {s.block_size})"
    w.line(f"its_block: T.let[T.int32] = block_tables_b[attn_items_b[its_item] * {max_blocks_per_seq} + {block}]")
    w.line(f"later_k: T.let[T.int64] = {_piece(s, 'its_block', 'its_head', s.words * s.block_size)}")


def _not_before(begin: str, reads: Reads, position: str) -> str:
    """`begin`, or what the token at `position` reads first if that is later."""
    first = reads.first(IndexText(position))
    return f"T.max({begin}, {first})" if isinstance(first, IndexText) else begin


def _piece(s: AttentionShape, block: str, head: str, size: int) -> str:
    """Index in a cache of the piece of one head in a block, `size` words long."""
    return f"(T.cast({block}, 'int64') * {s.kv_heads} + T.cast({head}, 'int64')) * {size}"


def _tile_bounds(w: Writer, reads: Reads) -> None:
    """Row tile `t`: its rows, the position of its first token, the positions begin .. end that it sees of the item's
    splits, the segments that they lie in, and whether these are of several splits."""
    w.line("first: T.let[T.int32] = t * low + T.min(t, longer)")
    w.line("tokens: T.let[T.int32] = low + T.cast(t < longer, 'int32')")
    w.line("height: T.let[T.int32] = tokens * group")
    w.line("row: T.let[T.int32] = first_row + first")
    w.line("position: T.let[T.int32] = start + first")
    w.line(f"low_split: T.let[T.int32] = T.max(split, 0) * {SPLIT}")
    w.line(f"high_split: T.let[T.int32] = T.Select(split >= 0, low_split + {SPLIT}, position + tokens)")
    w.line("end: T.let[T.int32] = T.min(position + tokens, high_split)")
    w.line(f"begin: T.let[T.int32] = {_not_before('low_split', reads, 'position')}")
    w.line(f"from_segment: T.let[T.int32] = T.truncdiv(begin, {SEGMENT})")
    w.line(f"to_segment: T.let[T.int32] = T.max(from_segment, T.truncdiv(end + {SEGMENT - 1}, {SEGMENT}))")
    splits = f"T.truncdiv(to_segment - 1, {_SEGMENTS}) > T.truncdiv(from_segment, {_SEGMENTS})"
    w.line(f"several: T.let[T.int32] = T.cast({splits}, 'int32')")


def _segment(
    w: Writer,
    s: AttentionShape,
    at: _Scratch,
    max_blocks_per_seq: int,
    rows: _Rows,
    score: dict[int, PrivateFunction],
    softmax: PrivateFunction,
    weigh: dict[int, PrivateFunction],
) -> None:
    """Segment `c` of a row tile: scores, softmax update, weighted sum, over the blocks that the tile sees."""
    w.line(f"base: T.let[T.int32] = c * {SEGMENT}")
    w.line(f"from_block: T.let[T.int32] = T.truncdiv(T.max(0, begin - base), {s.block_size})")
    w.line(f"visible: T.let[T.int32] = T.min({SEGMENT}, end - base)")
    w.line(f"to_block: T.let[T.int32] = T.truncdiv(visible + {s.block_size - 1}, {s.block_size})")
    first_block = f"seq * {max_blocks_per_seq} + c * {SEGMENT // s.block_size}"
    table = f"T.address_of(block_tables_b[{first_block}])"
    k_size, v_size = s.words * s.block_size, s.block_size // s.pair * s.v_dim

    cache = f"T.address_of(kcache_b[T.cast(head, 'int64') * {k_size}]), {table}"
    then = f"T.address_of(vcache_b[{_piece(s, f'block_tables_b[{first_block} + from_block]', 'head', v_size)}])"
    blocks = f"{s.kv_heads * k_size}, from_block, to_block"
    _by_height(w, rows, score, f"{at.queries}, {cache}, {at.scores}", then, blocks)

    per_block = s.block_size // 16
    span = f"T.bitwise_and(from_block * {per_block}, -2), T.bitwise_and(to_block * {per_block} + 1, -2)"
    state = f"{at.scores}, {at.factors}, {at.sums}, {at.maxima}"
    w.line(f"T.evaluate(Mod.{softmax.name}({state}, height, group, position, base, {span}))")

    cache = f"T.address_of(vcache_b[T.cast(head, 'int64') * {v_size}]), {table}"
    after = f"block_tables_b[{first_block} + {SEGMENT // s.block_size}]"
    w.line("last: T.let[T.int32] = T.cast(c + 1 == to_segment, 'int32')")
    then = f"T.address_of(kcache_b[T.if_then_else(last == 1, later_k, {_piece(s, after, 'head', k_size)})])"
    tokens = f"{s.kv_heads * v_size}, from_block, visible"
    _by_height(w, rows, weigh, f"{at.scores}, {cache}, {at.factors}, {at.acc}", then, tokens)


def _by_height(
    w: Writer, rows: _Rows, functions: dict[int, PrivateFunction], pointers: str, then: str, numbers: str
) -> None:
    """Call the function for the tile's height; `then` is the address of what is read after it."""
    for i, (height, function) in enumerate(functions.items()):
        with w.block(f"{'el' if i else ''}if height == {height}:"):
            ahead = f", {then}" if rows.one_token(height) else ""
            w.line(f"T.evaluate(Mod.{function.name}({pointers}{ahead}, {numbers}))")
