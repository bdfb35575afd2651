"""What the engine needs from a device: input arrays to fill, and steps that run over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.split_kv import Splitting
from inferir.ir.contract.symbols import StepCounts


class Step(NamedTuple):
    """A step whose inputs are in place: which program runs it, and over how much of them."""

    descriptor: BatchDescriptor
    counts: StepCounts


@dataclass(frozen=True)
class StepOutputs:
    """Views of the step's outputs, valid until the next step is submitted.

    tokens: [R, N] i32, the tokens that each row brings, N at most; one below 0 is none, and first in its row it says
    that none can be drawn. argmax: [G, N] i32, those of rows that have no logits. logits: [R · N, V] f32, those of the
    tokens of row 0, then of row 1, ….
    """

    tokens: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    argmax: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 1), np.int32))

    def row_logits(self, row: int) -> npt.NDArray[np.float32]:
        """Logits [N, V] of row `row`."""
        width = self.tokens.shape[1]
        return self.logits[row * width : (row + 1) * width]


class OperationTimes(NamedTuple):
    """When the operations of a step program ended. begin, end: nanoseconds of the monotonic clock around the program.
    stamps: [operations + 1] i64, a counter of even pace at the program's start and after each operation. claims: what
    each worker did in each operation, [workers, operations, 4] i64 (`inferir.ir.contract.abi.CLAIMS`), if it is known.
    """

    begin: int
    end: int
    stamps: npt.NDArray[np.int64]
    claims: npt.NDArray[np.int64] | None = None


class Executor(Protocol):
    """Owns the device memory of a model: weights, arena, inputs, outputs and KV cache.

    `inputs` are arrays of the largest shape a step may have, by input name; a step reads their leading parts, as
    `StepCounts` says. With `argmax_rows` among them steps may have arg-max rows. `residents` are buffers that keep
    their content, by name; the host may change them while no step runs. The KV cache has `kv_bytes` bytes, in
    `kv_regions` regions of memory with a part of every block each. `threads` compute. `operation_times` are those of
    the step that was waited for last, or None unless they are wanted.
    """

    inputs: dict[str, npt.NDArray[Any]]
    residents: dict[str, npt.NDArray[Any]]
    kv_bytes: int
    kv_regions: int
    splitting: Splitting
    threads: int
    operation_times: OperationTimes | None

    def time_operations(self, wanted: bool) -> None:
        """From the next step on, have `operation_times`, or None instead, which is how it begins."""

    def touch_kv(self, region: int, first: int, stop: int) -> None:
        """Have the system give the memory of blocks `first` … `stop` - 1, never used so far, in a region."""

    def attn_tile(self, descriptor: BatchDescriptor) -> int:
        """The most tokens an attention work item may have in such a step."""

    def submit(self, step: Step) -> Any:
        """Have a step run over what is in `inputs`, which stay as they are until `wait` has returned; a handle for
        that. A device of its own begins now, so that the host may do other work; one that computes on the host's
        threads may leave it all to `wait`. Raises `EngineError` if the engine is closed.
        """

    def wait(self, handle: Any) -> StepOutputs:
        """The outputs of the step that was submitted last. Raises `EngineError` if the device fails."""

    def close(self) -> None:
        """Release threads and memory; calling it again has no effect."""
