"""The private functions of a paged attention kernel (see `attention.py`), for one row tile height where it matters.

All work on a row tile in scratch memory: queries [rows, head_dim], scores [rows, SEGMENT], in their place weights (bf16
for bf16 caches, in the first half of a row), factors [rows] that bring accumulators to the newest maximum, accumulators
[rows, v_dim rounded up to 16], sums [rows, 16] and maxima [rows].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferir.codegen.tvm.kernels.microkernel import micro_kernel
from inferir.codegen.tvm.llvm.llvm_lib import call, sync
from inferir.codegen.tvm.source import PrivateFunction, Writer, f32, function, pieces, ramp, splat

SEGMENT = 256
"""Positions per softmax update; a multiple of every allowed block size."""

LOWEST = -1e30
"""The maximum of a row that has seen nothing."""

_STACK = 'annotations={"disable_lower_builtin": True}'


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention: query and KV heads, dims per head, tokens per KV block; dtype "bf16" or "f32"."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    block_size: int
    dtype: str

    @property
    def pair(self) -> int:
        """Values in one K step: 2 for bf16."""
        return 2 if self.dtype == "bf16" else 1

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def words(self) -> int:
        """Memory words of one query: pairs for bf16."""
        return self.head_dim // self.pair

    @property
    def dims(self) -> int:
        """Row length of the accumulators."""
        return -(-self.v_dim // 16) * 16

    @property
    def memory(self) -> str:
        return micro_kernel("panels", self.dtype).word


def state_pointers(prefix: str) -> dict[str, tuple[str, str]]:
    """The buffers of a softmax state, {prefix}ACC, {prefix}SUM and {prefix}MAX, for `function`."""
    names = {"ACC": "acc", "SUM": "sums", "MAX": "maxima"}
    return {f"{prefix}{buffer}": (f"{prefix.lower()}{p}", "float32") for buffer, p in names.items()}


def each(w: Writer, count: int, statement: Callable[[str, int], str]) -> None:
    """`statement(index, lanes)` for all of `count` elements: a loop over whole vectors, then the rest."""
    whole = count // 16
    if whole:
        with w.block(f"for i in range({whole}):"):
            w.line(statement("i * 16", 16))
    for at, lanes in pieces(count - whole * 16):
        w.line(statement(str(whole * 16 + at), lanes))


def load_queries(s: AttentionShape) -> PrivateFunction:
    """Copy a tile's queries to scratch, row after row."""
    w = Writer()
    name = f"attention_load_{s.dtype}_{s.head_dim}"
    pointers = {"Q": ("q", s.memory), "QUERIES": ("queries", s.memory)}
    with function(w, name, pointers, "height group stride"), w.block("for r in range(height):"):
        head = f"T.truncmod(r, group) * {s.words}"
        w.line(f"source: T.let[T.int32] = T.truncdiv(r, group) * stride + {head}")
        each(w, s.words, lambda i, n: f"QUERIES[{ramp(f'r * {s.words} + {i}', n)}] = Q[{ramp(f'source + {i}', n)}]")
    return PrivateFunction(name, w.text())


def clear_rows(s: AttentionShape) -> PrivateFunction:
    """Softmax states that have seen nothing."""
    w = Writer()
    name = f"attention_clear_{s.dims}"
    with function(w, name, state_pointers(""), "height"), w.block("for r in range(height):"):
        each(w, s.dims, lambda i, n: f"ACC[{ramp(f'r * {s.dims} + {i}', n)}] = {f32(0.0, n)}")
        w.line(f"SUM[T.ramp(r * 16, 1, 16)] = {f32(0.0, 16)}")
        w.line(f"MAX[r] = {f32(LOWEST)}")
    return PrivateFunction(name, w.text())


def _dot(s: AttentionShape, lanes: int, acc: str, x: str, y: str) -> str:
    return call("inf_dot_bf16", lanes, acc, x, y) if s.dtype == "bf16" else call("inf_fma", lanes, x, y, acc)


def _offset(base: str, index: str, lanes: int) -> str:
    """A cache index: int64 base plus int32 index, `lanes` wide."""
    at = f"{base} + T.cast({index}, 'int64')"
    return at if lanes == 1 else f"T.ramp({at}, T.int64(1), {lanes})"


def _next_piece(w: Writer, buffer: str) -> None:
    """Bind `next`, the address of the piece of `buffer` in block b + 1, or of what comes after the last block."""
    block = "T.cast(TABLE[T.min(b + 1, to_block - 1)], 'int64') * T.cast(stride, 'int64')"
    here, after = (sync("inf_addr", f"T.address_of({place})") for place in (f"{buffer}[{block}]", "AHEAD[0]"))
    w.line(f"next: T.let[T.int64] = T.Select(b + 1 < to_block, {here}, {after})")


def _ask(w: Writer, word: str) -> None:
    """Prefetch the line with a word of the next piece."""
    address = f"next + T.cast(({word}) * 4, 'int64')"
    w.line(f"T.evaluate({sync('inf_prefetch_read', sync('inf_ptr', address))})")


def scores(s: AttentionShape, height: int, features: frozenset[str], ahead: bool) -> PrivateFunction:
    """scores[r, token] = queries[r] . K[token] for blocks from_block .. to_block of a segment, `stride` words each.

    With `ahead`, each block is read while lines of the next are asked for, the one after the last at the address
    `ahead`: few rows wait for memory, and a block of one head is too short for the processor to see a stream.
    """
    widest = micro_kernel("panels", s.dtype).tile_vectors(height, features)
    vectors = next(v for v in (4, 2, 1) if v <= widest and s.block_size // 16 % v == 0)
    w = Writer()
    name = f"attention_scores_{s.dtype}_{s.head_dim}_{s.block_size}_{height}x{vectors}{'_ahead' if ahead else ''}"
    pointers = {
        "QUERIES": ("queries", s.memory),
        "K": ("k", s.memory),
        "TABLE": ("table", "int32"),
        "SCORES": ("scores", "float32"),
        **({"AHEAD": ("ahead", s.memory)} if ahead else {}),
    }
    lane = "T.ramp(0, 1, 16)"
    with (
        function(w, name, pointers, "stride from_block to_block"),
        w.block("for b in T.serial(from_block, to_block):"),
    ):
        w.line("base: T.let[T.int64] = T.cast(TABLE[b], 'int64') * T.cast(stride, 'int64')")
        if ahead:
            _next_piece(w, "K")
        with w.block(f"for g in range({s.block_size // 16 // vectors}):"):
            w.line(f'a = T.alloc_buffer(({height * vectors}, 16), "float32", {_STACK})')
            with w.block(f"for i in T.unroll({height * vectors}):"):
                w.line(f"a[i, {lane}] = {f32(0.0, 16)}")
            with w.block(f"for d in range({s.words}):"):
                for v in range(vectors):
                    index = f"d * {s.block_size} + g * {16 * vectors} + {16 * v}"
                    if ahead:
                        _ask(w, index)
                    w.line(f"k{v}: T.let = K[{_offset('base', index, 16)}]")
                with w.block(f"for r in T.unroll({height}):"):
                    w.line(f"x: T.let = T.broadcast(QUERIES[r * {s.words} + d], 16)")
                    for v in range(vectors):
                        c = f"a[r * {vectors} + {v}, {lane}]"
                        w.line(f"{c} = {_dot(s, 16, c, 'x', f'k{v}')}")
            with w.block(f"for r in T.unroll({height}):"), w.block(f"for v in T.unroll({vectors}):"):
                index = f"r * {SEGMENT} + b * {s.block_size} + g * {16 * vectors} + 16 * v"
                w.line(f"SCORES[T.ramp({index}, 1, 16)] = a[r * {vectors} + v, {lane}]")
    return PrivateFunction(name, w.text())


def weighted_sum(s: AttentionShape, height: int, features: frozenset[str], ahead: bool) -> PrivateFunction:
    """acc[r] = acc[r] * factors[r] + sum of weights[r, token] * V[token], over a segment's tokens up to `visible`, from
    the first of `from_block`.

    `ahead` is as in `scores`.
    """
    vectors = micro_kernel("panels", s.dtype).tile_vectors(height, features)
    columns = pieces(s.v_dim)
    w = Writer()
    name = f"attention_sum_{s.dtype}_{s.v_dim}_{s.block_size}_{height}x{vectors}{'_ahead' if ahead else ''}"
    pointers = {
        "WEIGHTS": ("weights", s.memory),
        "V": ("v", s.memory),
        "TABLE": ("table", "int32"),
        "FACTORS": ("factors", "float32"),
        "ACC": ("acc", "float32"),
        **({"AHEAD": ("ahead", s.memory)} if ahead else {}),
    }
    with function(w, name, pointers, "stride from_block visible"):
        w.line(f"to_block: T.let[T.int32] = T.truncdiv(visible + {s.block_size - 1}, {s.block_size})")
        whole = s.v_dim // (16 * vectors)
        if whole:
            with w.block(f"for g in range({whole}):"):
                _sum_columns(w, s, height, ahead, [(f"g * {16 * vectors} + {16 * v}", 16) for v in range(vectors)])
        rest = [(str(at), lanes) for at, lanes in columns if at >= whole * 16 * vectors]
        for i in range(0, len(rest), vectors):
            with w.block("for _ in range(1):"):
                _sum_columns(w, s, height, ahead, rest[i : i + vectors])
    return PrivateFunction(name, w.text())


def _sum_columns(w: Writer, s: AttentionShape, height: int, ahead: bool, columns: list[tuple[str, int]]) -> None:
    """The weighted sum of some columns of V: (first column, lanes) each, kept in registers over all blocks."""
    per_block = s.block_size // s.pair
    for j, (_, lanes) in enumerate(columns):
        w.line(f'a{j} = T.alloc_buffer(({height}, {lanes}), "float32", {_STACK})')

    def rows(statement: Callable[[str, str, int], str]) -> None:
        for j, (at, lanes) in enumerate(columns):
            acc = f"ACC[{ramp(f'r * {s.dims} + {at}', lanes)}]"
            w.line(statement(f"a{j}[r, {ramp('0', lanes)}]", acc, lanes))

    def step(k: str, last: bool) -> None:
        for j, (at, lanes) in enumerate(columns):
            if ahead:
                _ask(w, f"{k} * {s.v_dim} + {at}")
            value = f"V[{_offset('base', f'{k} * {s.v_dim} + {at}', lanes)}]"
            if last:
                value = f"T.bitwise_and({value}, {splat('T.int32(65535)', lanes)})"
            w.line(f"v{j}: T.let = {value}")
        with w.block(f"for r in T.unroll({height}):"):
            w.line(f"x: T.let = WEIGHTS[r * {SEGMENT} + b * {per_block} + {k}]")
            for j, (_, lanes) in enumerate(columns):
                c = f"a{j}[r, {ramp('0', lanes)}]"
                w.line(f"{c} = {_dot(s, lanes, c, splat('x', lanes), f'v{j}')}")

    with w.block(f"for r in T.unroll({height}):"):
        rows(lambda register, acc, lanes: f"{register} = {acc} * {splat('FACTORS[r]', lanes)}")
    with w.block("for b in T.serial(from_block, to_block):"):
        w.line("base: T.let[T.int64] = T.cast(TABLE[b], 'int64') * T.cast(stride, 'int64')")
        if ahead:
            _next_piece(w, "V")
        w.line(f"tokens: T.let[T.int32] = T.min({s.block_size}, visible - b * {s.block_size})")
        with w.block(f"for k in range(T.truncdiv(tokens, {s.pair})):"):
            step("k", False)
        if s.pair == 2:
            # The other half of the last pair was perhaps never written.
            with w.block("if T.bitwise_and(tokens, 1) == 1:"):
                w.line("k: T.let[T.int32] = T.truncdiv(tokens, 2)")
                step("k", True)
    with w.block(f"for r in T.unroll({height}):"):
        rows(lambda register, acc, lanes: f"{acc} = {register}")


def finish_rows(s: AttentionShape) -> PrivateFunction:
    """out[token, head] = accumulators / sum for every row of a tile; `stride` elements between tokens."""
    w = Writer()
    name = f"attention_finish_{s.dtype}_{s.v_dim}"
    pointers = {
        "OUT": ("out", "uint16" if s.dtype == "bf16" else "float32"),
        "ACC": ("acc", "float32"),
        "SUM": ("sums", "float32"),
    }
    with function(w, name, pointers, "height group stride"), w.block("for r in range(height):"):
        w.line(f"inverse: T.let[T.float32] = T.float32(1) / {call('inf_hsum', 16, 'SUM[T.ramp(r * 16, 1, 16)]')}")
        head = f"T.truncmod(r, group) * {s.v_dim}"
        w.line(f"target: T.let[T.int32] = T.truncdiv(r, group) * stride + {head}")

        def store(i: str, lanes: int) -> str:
            value = f"ACC[{ramp(f'r * {s.dims} + {i}', lanes)}] * {splat('inverse', lanes)}"
            value = call("inf_f32_to_bf16", lanes, value) if s.dtype == "bf16" else value
            return f"OUT[{ramp(f'target + {i}', lanes)}] = {value}"

        each(w, s.v_dim, store)
    return PrivateFunction(name, w.text())
