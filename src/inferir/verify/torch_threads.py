"""How many threads torch computes references with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 50_000_000
"""Parameters of a model below which one thread is faster: handing out so little work takes longer than doing it."""


@contextmanager
def torch_threads(parameters: int) -> Iterator[None]:
    """Let torch use one thread inside the block for a model of so few parameters."""
    before = torch.get_num_threads()
    if parameters < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
