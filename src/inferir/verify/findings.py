"""What a bisection found: plain records, for the command, JSON and other reports."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TensorFacts:
    """A tensor in numbers. low, high, mean, rms: of its finite values, None without any."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    rms: float | None = None
    nan: int = 0
    inf: int = 0

    @staticmethod
    def of(name: str, tensor: torch.Tensor) -> TensorFacts:
        dtype = str(tensor.dtype).removeprefix("torch.")
        values = tensor.detach().reshape(-1).double()
        finite = values[values.isfinite()]
        nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
        if not len(finite):
            return TensorFacts(name, tuple(tensor.shape), dtype, nan=nan, inf=inf)
        low, high = (float(v) for v in finite.aminmax())
        mean, rms = float(finite.mean()), float(finite.pow(2).mean().sqrt())
        return TensorFacts(name, tuple(tensor.shape), dtype, low, high, mean, rms, nan, inf)


@dataclass(frozen=True)
class Worst:
    """The element that is furthest from its bound: its index in the tensor `name`, and both values."""

    name: str
    index: tuple[int, ...]
    expected: float
    found: float
    bound: float | None = None

    @property
    def difference(self) -> float:
        difference = abs(self.found - self.expected)
        return math.inf if math.isnan(difference) else difference


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    kind: "capture", "pass", "graph" (the recorded kernel graph), "weight", "kernel" or "runtime". name: of the module,
    pass, region, weight or step input. where: what is at fault in one line: bucket, step, layer. before, after: IR
    text; a region's is in `before`. reproducer: the folder that was written.
    """

    kind: str
    name: str
    where: str
    measured: str
    before: str = ""
    after: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    worst: Worst | None = None
    notes: tuple[str, ...] = ()
    reproducer: str | None = None

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Looked:
    """What a stage of the search looked at, and how far the worst of it was from its bound."""

    stage: str
    looked_at: str
    result: str


@dataclass(frozen=True)
class Bisection:
    """Findings, in the order of the pipeline, and what was looked at."""

    findings: tuple[Finding, ...]
    looked: tuple[Looked, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Numbers that JSON lacks are texts."""
        return {"passed": self.passed, **json_numbers(asdict(self))}


def json_numbers(value: Any) -> Any:
    """`value` with texts for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {k: json_numbers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_numbers(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
