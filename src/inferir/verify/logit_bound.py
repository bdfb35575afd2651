"""How far the logits of a graph may be from eager's: the bounds of `checks`, for a search with few positions.

f32    LOGIT_BOUND times the RMS of eager's logits, or ROUNDING times what rounding alone moves eager's logits at that
       position, whichever is more
bf16   the mean KL divergence from eager in float32 is at most FEW_KL_MARGIN times that of eager in bfloat16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferir.verify.checks import LOGIT_BOUND, ROUNDING, STRAY, scale_of
from inferir.verify.divergence import Rows, distances

FEW_KL_MARGIN = 1.5
"""More than the margin of a whole verification, whose mean is over more positions."""


@dataclass(frozen=True)
class Reach:
    """How far logits are from eager's: `measured` against `bound`, in the unit that `what` names."""

    what: str
    measured: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.measured <= self.bound

    def __str__(self) -> str:
        return f"{self.what} {self.measured:.2e}, bound {self.bound:.2e}"


@dataclass
class LogitBound:
    """reference: eager's logits in float32, of each sequence. own: those of eager in the served type, for bf16.
    precise: computes eager's logits in float64; it is called at most once per sequence, where it matters.
    """

    reference: Sequence[Rows]
    own: Sequence[Rows] | None
    precise: Callable[[int], Rows]
    _rounding: dict[int, np.ndarray] = field(default_factory=dict)

    def reach(self, found: Sequence[Rows]) -> Reach:
        """How far `found` is from the reference."""
        if self.own is None:
            return self._largest(found)
        ours, eager = (
            np.concatenate([distances(r, x).kl for r, x in zip(self.reference, rows, strict=True)])
            for rows in (found, self.own)
        )
        kept = eager <= STRAY * np.median(eager)
        return Reach("mean KL", float(ours[kept].mean()), FEW_KL_MARGIN * float(eager[kept].mean()))

    def _largest(self, found: Sequence[Rows]) -> Reach:
        """The position that is furthest from its bound."""
        bound = LOGIT_BOUND * scale_of(list(self.reference))
        worst = Reach("largest difference of logits", 0.0, bound)
        for number, (want, have) in enumerate(zip(self.reference, found, strict=True)):
            far = distances(want, have).max_abs
            allowed = np.full(len(far), bound)
            if (far > bound).any():
                allowed = np.maximum(allowed, ROUNDING * self._rounding_of(number, want))
            place = int(np.argmax(far / allowed))
            if far[place] / allowed[place] > worst.measured / worst.bound or not np.isfinite(far[place]):
                worst = Reach(worst.what, float(far[place]), float(allowed[place]))
        return worst

    def _rounding_of(self, number: int, want: Rows) -> np.ndarray:
        if number not in self._rounding:
            self._rounding[number] = distances(want, self.precise(number)).max_abs
        return self._rounding[number]
