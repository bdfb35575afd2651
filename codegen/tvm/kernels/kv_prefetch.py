"""What a matrix product prefetches while it multiplies: weights of its next block, and what the next attention reads.

A micro-kernel takes a list of addresses, one per `PIECE` bytes, and prefetches `PREFETCH_LINES` lines of them per step
(`microkernel.py`). The first calls within a panel prefetch the block that the same thread multiplies next. Further
ones would do so again; in compute-bound products, which leave bandwidth idle, they prefetch keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.tvm.kernels.microkernel import PIECE, PIECE_STEPS, PREFETCH_LINES
from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import Param, Writer
from inferir.ir.contract.kernel_args import Of
from inferir.ir.contract.split_kv import ITEM_WIDTH
from inferir.ir.weight_blocks import BLOCK

CALLS = 4 // PREFETCH_LINES
"""Calls of micro-kernels over all of K that prefetch a whole block: a step of it has four lines."""

MOST_BLOCKS = 32  # of a sequence; longer ones are read by the attention itself, at the speed of memory
CAPACITY = 256  # pieces of keys and values that a task asks for


@dataclass(frozen=True)
class KvPrefetch:
    """Sizes of what the next attention reads: bytes of a block's keys and values (all heads), tokens per block, row
    length of block tables. A product prefetches each `stride`-th block of a sequence, from `first` on."""

    key_bytes: int
    value_bytes: int
    block_size: int
    max_blocks: int
    first: int = 0
    stride: int = 1


KV_ARGS = {
    "next_keys": Of("attention", "kcache"),
    "next_values": Of("attention", "vcache"),
    "next_tables": Of("attention", "block_tables"),
    "next_items": Of("attention", "attn_items"),
}
"""Parameters beside the product's own, and what they stand for."""

KV_PARAMS = tuple(Param(name, "int32") for name in KV_ARGS)


def list_bytes(steps: int, kv: KvPrefetch | None) -> int:
    """Scratch memory for the lists of a product of `steps` K steps."""
    return 8 * (-(-steps // PIECE_STEPS) + (CAPACITY if kv else 0))


def find_pieces(w: Writer, kv: KvPrefetch, at: int, *, tasks: str, calls: str, steps: int) -> None:
    """Write addresses of keys and values to scratch memory from float `at`: this task's share, of `tasks`, of what a
    step of single tokens will read. Other steps find nothing.

    Binds `found`, how many there are, and how calls of micro-kernels share them, `calls` in a panel: `others` calls ask
    for `each`, one in `pause` entries of their lists, for memory gives lines at its own speed.
    """
    for p in KV_PARAMS:
        w.line(f'{p.name}_b = T.decl_buffer((1,), "{p.dtype}", data={p.name})')
    w.line('found = T.alloc_buffer((1,), "int32")')
    w.line("found[0] = 0")
    sizes = {"next_keys": kv.key_bytes, "next_values": kv.value_bytes}
    per_block = sum(-(-size // PIECE) for size in sizes.values())
    with w.block("if n_a == n_t:"):
        for name in sizes:
            w.line(f"{name}_at: T.let[T.int64] = {sync('inf_addr', f'T.address_of({name}_b[0])')}")
        w.line(f"from_item: T.let[T.int32] = T.truncdiv(task * n_a, {tasks})")
        w.line(f"to_item: T.let[T.int32] = T.truncdiv((task + 1) * n_a, {tasks})")
        with w.block("for item in T.serial(from_item, to_item):"):
            w.line(f"table: T.let[T.int32] = next_items_b[item * {ITEM_WIDTH}] * {kv.max_blocks}")
            last = f"T.truncdiv(next_items_b[item * {ITEM_WIDTH} + 3], {kv.block_size})"
            mine = f"T.truncdiv(T.min({last}, {MOST_BLOCKS - 1}) + {kv.stride - kv.first}, {kv.stride})"
            room = f"T.truncdiv({CAPACITY} - found[0], {per_block})"
            w.line(f"blocks: T.let[T.int32] = T.min({mine}, {room})")
            w.line("start: T.let[T.int32] = found[0]")
            with w.block("for b in range(blocks):"):
                w.line(f"its: T.let[T.int64] = T.cast(next_tables_b[table + b * {kv.stride} + {kv.first}], 'int64')")
                entry = 0
                for name, size in sizes.items():
                    for piece in range(-(-size // PIECE)):
                        address = f"{name}_at + its * T.int64({size}) + T.int64({piece * PIECE})"
                        _store(w, f"{at} + (start + b * {per_block} + {entry}) * 2", address)
                        entry += 1
            w.line(f"found[0] = start + T.max(blocks, 0) * {per_block}")
    entries = -(-steps // PIECE_STEPS)
    w.line(f"others: T.let[T.int32] = T.max({calls} - {CALLS}, 1)")
    w.line(f"each: T.let[T.int32] = T.min(T.truncdiv(found[0] + others - 1, others), {entries})")
    w.line(f"pause: T.let[T.int32] = T.truncdiv({entries}, T.max(each, 1))")


def write_list(
    w: Writer, at: int, steps: int, *, number: str, weights: str, block: str, kv_at: int | None = None
) -> None:
    """Write a call's list to scratch memory from float `at`.

    number: of the call within the panel; weights: the buffer of packed weights; block: what is multiplied
    next. kv_at: place of the pieces that `find_pieces` has found.
    """
    entries = -(-steps // PIECE_STEPS)
    share = f"T.truncmod({number}, {CALLS}) * {PREFETCH_LINES * 16 * steps}"
    first = sync("inf_addr", f"T.address_of({weights}[T.cast({block}, 'int64') * {steps * BLOCK} + {share}])")
    w.line(f"begin: T.let[T.int64] = {first}")
    step = f"T.cast(j * {PIECE}, 'int64')"
    if kv_at is None:
        with w.block(f"for j in range({entries}):"):
            _store(w, f"{at} + j * 2", f"begin + {step}")
        return
    w.line(f"number: T.let[T.int32] = {number}")
    with w.block(f"for j in range({entries}):"):
        _store(w, f"{at} + j * 2", f"begin + T.Select(number < {CALLS}, {step}, T.int64(0))")
    with w.block(f"if number >= {CALLS}:"), w.block("for j in range(each):"):
        w.line(f"piece: T.let[T.int32] = j * others + number - {CALLS}")
        with w.block("if piece < found[0]:"):
            address = sync("inf_get_i64", f"T.address_of(SCRATCH[{kv_at} + piece * 2])")
            _store(w, f"{at} + j * pause * 2", address)


def _store(w: Writer, index: str, value: str) -> None:
    w.line(f"T.evaluate({sync('inf_put_i64', f'T.address_of(SCRATCH[{index}])', value)})")
