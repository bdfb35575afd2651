"""Paged attention: softmax(q kᵀ · scale) v over the blocks of a KV cache, causal, optionally windowed and soft-capped.

Layouts (kp is 2 for bf16, 1 for f32; a block holds `block_size` tokens, a multiple of 16)::

    K cache [blocks, kv_heads, head_dim / kp, block_size, kp]   lanes are tokens: 16 scores per register
    V cache [blocks, kv_heads, block_size / kp, v_dim, kp]      lanes are dims: 16 outputs per register

A work item is a row of `attn_items`: (sequence, first token row of this step, tokens, position of that token). A chunk
is one work item, one KV head and one part of its query heads (a single part unless the group is large). Its (token,
query head) pairs are rows, handled in row tiles that stay in registers; each tile sweeps the sequence in segments of
fixed absolute positions: scores, running maximum and sum (online softmax, Milakov & Gimelshein 2018, with powers of
two), then the weighted sum of V.

A row's result has the same bits however its tokens were split into items and tiles: segments start at multiples of
`SEGMENT`, masked positions have the weight 0 exactly, and a segment or block that is masked for a row leaves its state
as it was (maxima start at a finite -1e30, so the factor for the old state is exactly 1).

Memory of positions that were never written may hold anything: scores of masked positions are replaced, not multiplied,
V is not read past the last visible position, and in the last bf16 pair the other half is masked out.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.tvm.attention_parts import (
    SEGMENT,
    AttentionShape,
    finish_rows,
    scores,
    start_rows,
    update_softmax,
    weighted_sum,
)
from inferir.codegen.tvm.microkernel import MEMORY, accumulators
from inferir.codegen.tvm.source import ChunkKernel, Param, PrivateFunction, Writer, entry_head
from inferir.ir.errors import CodegenError


@dataclass(frozen=True)
class _Rows:
    """How a group's (token, head) pairs are cut into row tiles.

    parts: parts of the group, each its own chunk; tokens: most tokens of a tile; heights: all row counts a tile can
    have.
    """

    parts: int
    tokens: int
    heights: tuple[int, ...]


def _row_tiles(group: int, tile_tokens: int, tallest: int) -> _Rows:
    if group > tallest:
        parts = -(-group // tallest)
        return _Rows(parts, 1, tuple(sorted({-(-group // parts), group // parts}, reverse=True)))
    tokens = min(tallest // group, tile_tokens)
    return _Rows(1, tokens, tuple(group * t for t in range(tokens, 0, -1)))


def attention_kernel(
    name: str,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_dim: int,
    block_size: int,
    window: int,
    softcap: float,
    scale: float,
    dtype: str,
    q_row_stride: int,
    out_row_stride: int,
    tile_tokens: int,
    max_blocks_per_seq: int,
    features: frozenset[str],
) -> ChunkKernel:
    """A kernel with parameters q, kcache, vcache, block_tables, attn_items, out.

    q and the caches are int32 pairs for bf16 (out is uint16), float32 for f32. Row strides count elements.
    `tile_tokens` is the most tokens of a work item; `max_blocks_per_seq` the row length of block_tables; window 0 means
    none, softcap 0 none. Raises `CodegenError` naming the kernel for sizes it cannot take.
    """
    s = AttentionShape(heads, kv_heads, head_dim, v_dim, block_size, dtype)
    if heads % kv_heads:
        raise CodegenError(f"{name}: {heads} query heads are no multiple of {kv_heads} KV heads")
    if block_size % 16 or SEGMENT % block_size:
        raise CodegenError(f"{name}: block size {block_size} is no multiple of 16 that divides {SEGMENT}")
    if head_dim % s.pair or q_row_stride % s.pair:
        raise CodegenError(f"{name}: head dim {head_dim} and row stride {q_row_stride} must be even for bf16")
    half = 2 if "avx512f" in features else 1
    rows = _row_tiles(s.group, tile_tokens, accumulators(dtype, features) // half)
    tallest = rows.heights[0]
    kind = MEMORY[dtype]
    words, dims = head_dim // s.pair, -(-v_dim // 16) * 16
    # Scratch, in floats: queries, scores, weights (bf16), accumulators, sums, maxima.
    sizes = {
        "QS": tallest * words,
        "SCORES": tallest * SEGMENT,
        "WEIGHTS": tallest * SEGMENT // 2 if dtype == "bf16" else 0,
        "ACC": tallest * dims,
        "SUM": tallest * 16,
        "MAX": tallest,
    }
    at: dict[str, str] = {}
    floats = 0
    for buffer, size in sizes.items():
        at[buffer] = f"T.address_of(SCRATCH[{floats}])"
        floats += -(-size // 16) * 16
    if dtype == "f32":
        at["WEIGHTS"] = at["SCORES"]

    score = {h: scores(s, h, features) for h in rows.heights}
    weigh = {h: weighted_sum(s, h, features) for h in rows.heights}
    start, finish = start_rows(s), finish_rows(s)
    softmax = update_softmax(name, s, window=window, softcap=softcap, scale=scale)
    params = (
        *(Param(p, kind) for p in ("q", "kcache", "vcache")),
        *(Param(p, "int32") for p in ("block_tables", "attn_items")),
        Param("out", "uint16" if dtype == "bf16" else "float32"),
    )
    w = Writer()
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head(name, params)):
        for p in params:
            w.line(f'{p.name}_b = T.decl_buffer((1,), "{p.dtype}", data={p.name})')
        w.line('SCRATCH = T.decl_buffer((1,), "float32", data=scratch)')
        w.line(f"item: T.let[T.int32] = T.truncdiv(chunk, {kv_heads * rows.parts}) * 4")
        w.line(f"head: T.let[T.int32] = T.truncmod(T.truncdiv(chunk, {rows.parts}), {kv_heads})")
        w.line(f"part: T.let[T.int32] = T.truncmod(chunk, {rows.parts})")
        small, more = divmod(s.group, rows.parts)
        w.line(f"first_head: T.let[T.int32] = head * {s.group} + part * {small} + T.min(part, {more})")
        w.line(f"group: T.let[T.int32] = {small} + T.cast(part < {more}, 'int32')")
        for i, field in enumerate(("seq", "first_row", "count", "start")):
            w.line(f"{field}: T.let[T.int32] = attn_items_b[item + {i}]")
        w.line(f"tiles: T.let[T.int32] = T.truncdiv(count + {rows.tokens - 1}, {rows.tokens})")
        w.line("low: T.let[T.int32] = T.truncdiv(count, T.max(tiles, 1))")
        w.line("longer: T.let[T.int32] = count - low * tiles")
        with w.block("for t in range(tiles):"):
            w.line("first: T.let[T.int32] = t * low + T.min(t, longer)")
            w.line("height: T.let[T.int32] = (low + T.cast(t < longer, 'int32')) * group")
            w.line("row: T.let[T.int32] = first_row + first")
            w.line("position: T.let[T.int32] = start + first")
            w.line("end: T.let[T.int32] = position + low + T.cast(t < longer, 'int32')")
            w.line(f"begin: T.let[T.int32] = {f'T.max(0, position - {window - 1})' if window else '0'}")
            where = f"T.cast(row, 'int64') * {q_row_stride // s.pair} + T.cast(first_head, 'int64') * {words}"
            state = f"{at['ACC']}, {at['SUM']}, {at['MAX']}"
            args = f"T.address_of(q_b[{where}]), {at['QS']}, {state}, height, group, {q_row_stride // s.pair}"
            w.line(f"T.evaluate(Mod.{start.name}({args}))")
            with w.block(f"for c in range(T.truncdiv(begin, {SEGMENT}), T.truncdiv(end + {SEGMENT - 1}, {SEGMENT})):"):
                w.line(f"base: T.let[T.int32] = c * {SEGMENT}")
                w.line(f"from_block: T.let[T.int32] = T.truncdiv(T.max(0, begin - base), {block_size})")
                w.line(f"visible: T.let[T.int32] = T.min({SEGMENT}, end - base)")
                w.line(f"to_block: T.let[T.int32] = T.truncdiv(visible + {block_size - 1}, {block_size})")
                table = f"T.address_of(block_tables_b[seq * {max_blocks_per_seq} + c * {SEGMENT // block_size}])"
                per_head = words * block_size
                cache = f"T.address_of(kcache_b[T.cast(head, 'int64') * {per_head}]), {table}"
                span = f"{kv_heads * per_head}, from_block, to_block"
                _by_height(w, score, f"{at['QS']}, {cache}, {at['SCORES']}, {span}")
                span = f"from_block * {block_size // 16}, to_block * {block_size // 16}"
                args = f"{at['SCORES']}, {at['WEIGHTS']}, {state}, height, group, position, base, {span}"
                w.line(f"T.evaluate(Mod.{softmax.name}({args}))")
                per_head = block_size // s.pair * v_dim
                cache = f"T.address_of(vcache_b[T.cast(head, 'int64') * {per_head}]), {table}"
                span = f"{kv_heads * per_head}, from_block, visible"
                _by_height(w, weigh, f"{at['WEIGHTS']}, {cache}, {at['ACC']}, {span}")
            where = f"T.cast(row, 'int64') * {out_row_stride} + T.cast(first_head, 'int64') * {v_dim}"
            args = f"T.address_of(out_b[{where}]), {at['ACC']}, {at['SUM']}, height, group, {out_row_stride}"
            w.line(f"T.evaluate(Mod.{finish.name}({args}))")
        w.line("return T.int32(0)")
    shared = (start, softmax, *score.values(), *weigh.values(), finish)
    return ChunkKernel(name, params, w.text(), f"n_a * {kv_heads * rows.parts}", 4 * floats, shared)


def _by_height(w: Writer, functions: dict[int, PrivateFunction], args: str) -> None:
    for i, (height, function) in enumerate(functions.items()):
        with w.block(f"{'el' if i else ''}if height == {height}:"):
            w.line(f"T.evaluate(Mod.{function.name}({args}))")
