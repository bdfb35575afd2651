"""`sample.argmax`: the most likely token of each row, without most of the last matrix.

Five kernels, run one after another over memory that they share:

1. prepare: every row as integers n of two bytes, low + 256 * high, scaled so that few are above one byte; per tile of
   rows the list of steps with high bytes.
2. prefilter: products of weights in int8 (`layout.pack_int8_rows`) with low bytes, and with high bytes for the steps of
   the list; per row and block of 64 outputs the largest upper bound of a logit.
3. floor: per row the exact products, in the arithmetic of `matmul.py`, with the few blocks that have the largest upper
   bounds. No output whose upper bound is below what is found there can be the maximum.
4. rescore: the exact product of a row and a block where the block's upper bound reaches the row's floor; per row and
   range of blocks the first maximum.
5. pick: the first maximum of all.

What is read is a byte per weight and the few blocks that are rescored, and the token is that of the full product bit
for bit, since bounds only decide what is left out. They hold for any finite row; of a row with an infinity or NaN in
it, or close to zero throughout, every block is rescored.
"""

from __future__ import annotations

from inferir.codegen.tvm.kernels.argmax_parts import ArgmaxShape
from inferir.codegen.tvm.kernels.argmax_prefilter import prefilter
from inferir.codegen.tvm.kernels.argmax_prepare import prepare
from inferir.codegen.tvm.kernels.argmax_rescore import find_floor, pick, rescore
from inferir.codegen.tvm.source import ChunkKernel


def argmax_kernels(name: str, s: ArgmaxShape, features: frozenset[str]) -> tuple[ChunkKernel, ...]:
    """The kernels of one `sample.argmax`, to be run in this order. `features` are LLVM feature names."""
    return (
        prepare(name, s),
        prefilter(name, s, features),
        find_floor(name, s, features),
        rescore(name, s, features),
        pick(name, s),
    )
