"""What the engine needs from a device: input arrays to fill, and one call that runs a step over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.split_kv import Splitting
from inferir.ir.contract.symbols import StepCounts


@dataclass(frozen=True)
class StepOutputs:
    """Views of the step's outputs, valid until the next step: `tokens` [R] i32, `logits` [R, V] f32, and `greedy` [G]
    i32, the tokens of rows that have no logits.
    """

    tokens: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    greedy: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))


class Executor(Protocol):
    """Owns the device memory of a model: weights, arena, inputs, outputs and KV cache.

    `inputs` are arrays of the largest shape a step may have, by input name; a step reads their leading parts, as
    `StepCounts` says. With `greedy_rows` among them steps may have greedy rows.
    """

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]: ...

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache."""
        ...

    @property
    def kv_regions(self) -> int:
        """Regions of memory that the KV cache is made of, each with a part of every block."""
        ...

    def touch_kv(self, region: int, first: int, stop: int) -> None:
        """Have the system give the memory of blocks `first` … `stop` - 1, never used so far, in a region."""
        ...

    @property
    def splitting(self) -> Splitting: ...

    def attn_tile(self, descriptor: BatchDescriptor) -> int:
        """The most tokens an attention work item may have in such a step."""
        ...

    def run(self, descriptor: BatchDescriptor, counts: StepCounts) -> StepOutputs:
        """Run one step over what is in `inputs`. Raises `EngineError` if the device fails."""
        ...

    def close(self) -> None:
        """Release threads and memory; calling it again has no effect."""
        ...
