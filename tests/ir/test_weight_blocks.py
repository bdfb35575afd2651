"""Blocks of outputs."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.weight_blocks import from_blocks, to_blocks


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_from_blocks_undoes_to_blocks(n: int, steps: int, together: int, parts: int) -> None:
    n *= parts
    w = torch.arange(1, n * steps * together + 1, dtype=torch.float32).view(n, steps * together)
    blocks = to_blocks(w, together, parts)
    assert blocks.shape == (-(-n // 64), steps, 64, together)
    assert blocks.is_contiguous()
    assert torch.equal(from_blocks(blocks, n, parts), w)
    assert int((blocks == 0).sum()) == blocks.numel() - w.numel()


def test_a_block_alternates_between_the_halves() -> None:
    w = torch.arange(128.0).view(128, 1)
    first = to_blocks(w, 1, 2)[0, 0, :, 0].tolist()
    assert first == [*range(16), *range(64, 80), *range(16, 32), *range(80, 96)]
    pairs = to_blocks(torch.arange(64.0 * 4).view(64, 4), 2)
    assert pairs[0, 1, 3].tolist() == [4 * 3 + 2, 4 * 3 + 3]
