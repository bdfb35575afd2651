"""Text of `kv.write`: a piece of a row of keys or values to its place in a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

from inferir.codegen.lower.cache_write import CacheWrite
from inferir.codegen.lower.index import Index
from inferir.codegen.tvm.emitter import TvmEmitter, stored
from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import Writer
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType


def prefetch(out: Writer, e: TvmEmitter, w: CacheWrite) -> None:
    """Prefetch the cache lines that a row's keys or values go to while the row is being computed.

    A row of keys touches a line per channel pair, all of them far from each other and, in decoding, out of the caches:
    stores alone would wait for one after the other.
    """
    slot, bs = e.value(w.slots), w.block_size
    page = f"(({slot} // {bs}) * {w.heads} + head) * {w.page}"
    if w.keys:
        lines, where = w.width // w.pack, f"{page} // {w.pack} + line * {bs} + {slot} % {bs}"
    else:
        per_line = 64 // w.cache.type.dtype.itemsize
        lines = -(-w.width * w.pack // per_line)
        where = f"{page} + {slot} % {bs} // {w.pack} * {w.width * w.pack} + line * {per_line}"
    with out.block(f"for head in range({w.heads}):"), out.block(f"for line in range({lines}):"):
        out.line(f"T.evaluate({sync('inf_prefetch', f'T.address_of({e.memory[w.cache]}[{where}])')})")


def store(e: TvmEmitter, w: CacheWrite, value: str, index: Sequence[Index], lanes: int) -> None:
    """Store `lanes` neighbouring channels of a head. Keys in bf16 lie in memory as pairs, words of 32 bits."""
    slot, bs, dtype = e.value(w.slots), w.block_size, w.cache.type.dtype
    head, channel = index[0].text(), index[1]
    block, offset = f"({slot} // {bs})", f"({slot} % {bs})"
    page = f"({block} * {w.heads} + {head}) * {w.page}"
    stride, text = w.pack, stored(value, dtype, lanes)
    if not w.keys:
        base = (
            f"{page} + {offset} // {w.pack} * {w.width * w.pack} + ({channel.text()}) * {w.pack} + {offset} % {w.pack}"
        )
    elif dtype is DType.BF16 and lanes == 1:
        e.out.line(_half_word(e.memory[w.cache], f"{page} // 2", channel.text(), f"{bs} + {offset}", text))
        return
    elif dtype is DType.BF16:
        if channel.offset % 2:
            raise CodegenError(f"keys of width {w.width} do not fall into pairs")
        lanes, stride = lanes // 2, bs
        base = f"{page} // 2 + ({channel.text()}) // 2 * {bs} + {offset}"
        text = f'T.reinterpret("int32{f"x{lanes}" if lanes > 1 else ""}", {text})'
    else:
        stride, base = bs, f"{page} + ({channel.text()}) * {bs} + {offset}"
    e.out.line(f"{e.memory[w.cache]}[{base if lanes == 1 else f'T.ramp({base}, {stride}, {lanes})'}] = {text}")


def _half_word(cache: str, page: str, channel: str, rest: str, text: str) -> str:
    """Store one key of a pair. Both of a pair are of one row, which one task writes."""
    word = f"{cache}[{page} + ({channel}) // 2 * {rest}]"
    shift = f"({channel}) % 2 * 16"
    old = f"T.bitwise_and(T.shift_right({word}, {shift}), 65535)"
    new = f'T.cast({text}, "int32")'
    return f"{word} = T.bitwise_xor({word}, T.shift_left(T.bitwise_xor({old}, {new}), {shift}))"
