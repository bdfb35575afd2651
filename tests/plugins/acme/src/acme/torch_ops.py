"""The operator as models call it: `torch.ops.acme.soft_clip(x, limit)` = x / (1 + |x| / limit)."""

from __future__ import annotations

import torch


@torch.library.custom_op("acme::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return x / (1 + x.abs() / limit)


@soft_clip.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)
