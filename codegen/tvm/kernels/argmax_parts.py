"""What the kernels of `sample.argmax` share: sizes, parameters, and places in the workspace."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from inferir.codegen.tvm import source
from inferir.codegen.tvm.kernels.matmul import TASK_BYTES, TASKS
from inferir.codegen.tvm.kernels.microkernel import MicroKernel, micro_kernel
from inferir.codegen.tvm.source import Param, Writer, ramp
from inferir.ir.errors import CodegenError
from inferir.ir.weight_blocks import BLOCK

LANES = 16
INT8 = micro_kernel("int8_rows", "i8")
RANGES = 32  # parts of the outputs whose maxima are found apart
_PER_ROW = ("scale", "size", "rest", "shift", "slack", "floor")  # floats


@dataclass(frozen=True)
class ArgmaxShape:
    """Sizes of one bucket's kernels: x [up to `rows`, `k`] in `dtype` ("bf16" or "f32"), `n` outputs, `valid` of them
    wanted.

    height: rows of a tile.
    """

    k: int
    n: int
    valid: int
    dtype: str
    rows: int
    height: int

    @property
    def exact(self) -> MicroKernel:
        """Of the product whose maximum is wanted."""
        return micro_kernel("panels", self.dtype)

    @property
    def blocks(self) -> int:
        return -(-self.n // BLOCK)

    @property
    def tiles(self) -> int:
        return -(-self.rows // self.height)

    @property
    def blocks_per_range(self) -> int:
        return -(-self.blocks // RANGES)

    @property
    def ranges(self) -> int:
        return -(-self.blocks // self.blocks_per_range)

    @property
    def group(self) -> int:
        """Blocks that the pre-filter takes at a time."""
        block_bytes = self.k * BLOCK
        return 1 if self.tiles > 1 else max(1, min(TASK_BYTES // block_bytes, self.blocks // TASKS))

    @property
    def resolution(self) -> float:
        """What 127 stands for, in root mean squares of the row: less leaves fewer blocks to rescore and has more steps
        with high bytes.
        """
        return 0.25 if self.paired else 3.0

    @property
    def paired(self) -> bool:
        """Whether low and high bytes are two rows of one tile: for a single row, where memory is the limit."""
        return self.rows == 1

    def layout(self) -> dict[str, int]:
        """Offsets of the parts of the workspace in units of four bytes, and its size as `end`."""
        words = self.k // 4
        sizes = {
            "split": self.rows * 2 * words,  # low bytes of a row, then its high bytes
            "list": self.tiles * (words + 1),  # the count comes first
            "sum": self.rows,
            **dict.fromkeys(_PER_ROW, self.rows),
            "upper": self.rows * self.blocks,
            "best": (self.ranges + 1) * self.rows,  # the last ones are those that the floor was found with
            "index": (self.ranges + 1) * self.rows,
        }
        out, at = {}, 0
        for name, size in sizes.items():
            out[name] = at
            at += -(-size // LANES) * LANES
        return {**out, "end": at}


def argmax_shape(k: int, n: int, valid: int, dtype: str, rows: int, features: frozenset[str]) -> ArgmaxShape:
    """Raises `CodegenError` for sizes that have no kernel."""
    if k % LANES:
        raise CodegenError(f"the int8 pre-filter needs rows of a multiple of {LANES} elements, not {k}")
    return ArgmaxShape(k, n, valid, dtype, rows, min(rows, INT8.tall_rows(features)))


def parameters(dtype: str) -> tuple[Param, ...]:
    """Parameters of all five kernels: x twice, in steps of the product and in elements, its weights, the results of
    `layout.pack_int8_rows`, the tokens, and the workspace three times, by element type.
    """
    exact = micro_kernel("panels", dtype)
    return (
        Param("x", exact.word),
        Param("values", "uint16" if dtype == "bf16" else "float32"),
        *(Param(part.name, part.dtype) for part in exact.parts),
        Param("quantized", INT8.parts[0].dtype),
        Param("bounds", "float32"),
        Param("columns", "float32"),
        Param("out", "int32"),
        Param("bytes", "int8"),
        Param("words", "int32"),
        Param("floats", "float32"),
    )


def entry(w: Writer, name: str, s: ArgmaxShape, *names: str) -> AbstractContextManager[None]:
    """An entry with flat buffers NAME_b over the parameters named, and SCRATCH."""
    return source.entry(w, name, parameters(s.dtype), {**{f"{p}_b": p for p in names}, "SCRATCH": "scratch"})


def upper(s: ArgmaxShape, block: str = "block", lanes: int = 1) -> str:
    """Where the largest upper bounds of `row` from `block` on are."""
    at = s.layout()["upper"]
    return f"floats_b[{ramp(f'{at} + row * {s.blocks} + {block}', lanes)}]"
