"""By how much two results differ, and where most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Difference:
    """The place where two tensors differ most: both numbers there, their distance, and what of it is allowed."""

    place: tuple[int, ...]
    got: float
    want: float
    distance: float
    allowed: float

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.place))}]"
        return f"{self.got!r} instead of {self.want!r} at {at}: off by {self.distance:.3g}, allowed {self.allowed:.3g}"


def compare(
    got: torch.Tensor, want: torch.Tensor, relative: float = 0.0, scale: float = 0.0, flushes: bool = False
) -> Difference | None:
    """The worst place that is off by more than `relative` times the larger of |want| there and `scale`, if there is
    one. With 0 numbers must be equal; NaN and infinities always must. flushes: subnormal numbers may be zero.
    """
    import torch

    have, wanted = got.double(), want.double()
    if flushes and want.dtype.is_floating_point:
        small = (have == 0) & (wanted.abs() < torch.finfo(want.dtype).smallest_normal)
        wanted = torch.where(small, have, wanted)
    allowed = relative * wanted.abs().nan_to_num(0, 0, 0).clamp(min=scale)
    same = (have == wanted) | (have.isnan() & wanted.isnan())
    off = torch.where(same, 0.0, (have - wanted).abs().nan_to_num(torch.inf, torch.inf))
    excess = torch.where(off <= allowed, 0.0, off / allowed.clamp(min=1e-300))
    if not bool((excess > 0).any()):
        return None
    at = int(excess.flatten().argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), got.shape))
    return Difference(place, got[place].item(), want[place].item(), float(off[place]), float(allowed[place]))


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """The norm of the difference, relative to what is wanted; infinite where only one has a NaN or infinity."""
    import torch

    have, wanted = got.double().flatten(), want.double().flatten()
    same = (have == wanted) | (have.isnan() & wanted.isnan())
    off = torch.where(same, 0.0, have - wanted).nan_to_num(torch.inf, torch.inf, torch.inf)
    norm = wanted.nan_to_num(0, 0, 0).norm()
    if not bool(off.any()):
        return 0.0
    return float(off.norm() / norm) if norm else float("inf")


def worst(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest `distance` of pairs (got, want)."""
    return max((distance(got, want) for got, want in pairs), default=0.0)
