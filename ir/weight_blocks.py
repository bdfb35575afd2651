"""Blocks: the order in which every weight format keeps the outputs of a matrix, whatever it stores of each number.

A block is `BLOCK` outputs with K in order, so that one row of x and a thousand read the same memory from begin to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCK = 64
"""Outputs of a block."""

LANES = 16
"""Neighbouring outputs that stay together when parts are interleaved: those of a vector register."""


def block_rows(n: int, parts: int = 1) -> list[int]:
    """The row of a weight [n, K] that each output of the blocks has; -1 for padding.

    With `parts` P > 1, the P equal parts of the rows alternate, `LANES` at a time, within every block.
    """
    size, width = n // parts, BLOCK // parts
    out = []
    for b in range(-(-n // BLOCK)):
        for group in range(BLOCK // LANES):
            part, offset = group % parts, b * width + group // parts * LANES
            out += [part * size + offset + i if offset + i < size else -1 for i in range(LANES)]
    return out


def to_blocks(w: torch.Tensor, together: int, parts: int = 1) -> torch.Tensor:
    """[N, K] -> [ceil(N / BLOCK), K / together, BLOCK, together]: `together` consecutive K of an output lie together,
    and outputs are zero where N does not fill a block.
    """
    import torch

    n, k = w.shape
    rows = torch.tensor(block_rows(n, parts))
    if bool((rows != torch.arange(len(rows))).any()):
        picked = w[rows.clamp(min=0)]
        if bool((rows < 0).any()):
            picked[rows < 0] = 0
        w = picked
    return w.view(-1, BLOCK, k // together, together).permute(0, 2, 1, 3).contiguous()


def from_blocks(w: torch.Tensor, n: int, parts: int = 1) -> torch.Tensor:
    """The inverse of `to_blocks`: [n, K]."""
    import torch

    blocks, steps, block, together = w.shape
    flat = w.permute(0, 2, 1, 3).reshape(blocks * block, steps * together)
    rows = torch.tensor(block_rows(n, parts))
    out = torch.empty(n, steps * together, dtype=w.dtype)
    out[rows[rows >= 0]] = flat[rows >= 0]
    return out
