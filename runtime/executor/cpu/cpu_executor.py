"""The CPU: compiled step programs over mapped weights."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferir.ir.contract import abi
from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.contract.manifest import Manifest
from inferir.ir.contract.split_kv import Splitting, max_partials
from inferir.ir.contract.step_inputs import STEP_INPUTS
from inferir.ir.contract.symbols import COUNTED, StepCounts
from inferir.ir.contract.target import Target, host_features, missing_features
from inferir.ir.errors import ArtifactError, EngineError, TargetError
from inferir.runtime.executor.base import OperationTimes, Step, StepOutputs
from inferir.runtime.executor.cpu.claim_notes import ClaimNotes
from inferir.runtime.executor.cpu.step_memory import StepMemory
from inferir.runtime.executor.cpu.step_program import StepProgram
from inferir.runtime.executor.cpu.worker_threads import WorkerPool
from inferir.runtime.executor.dispatcher import Dispatcher
from inferir.runtime.loader import LoadedArtifact

INPUTS = tuple(i.name for i in STEP_INPUTS.values() if not i.optional)
OUTPUTS = ("tokens", "logits")


def check_features(target: Target, features: frozenset[str] | None = None) -> None:
    """Raise `TargetError` unless a processor with these feature flags (default: this machine's) can run the kernels."""
    missing = missing_features(target, host_features() if features is None else features)
    if missing:
        raise TargetError(
            f"the artifact was compiled for {target.name}, but this processor lacks {', '.join(missing)}; "
            "compile the model again with --target host on this machine or with an older target"
        )


class CpuExecutor:
    """Runs an artifact's step programs with `threads` threads and a KV cache of `num_blocks` blocks."""

    check_target = staticmethod(check_features)

    def __init__(self, artifact: LoadedArtifact, num_blocks: int, threads: int) -> None:
        manifest = artifact.manifest
        check_interface(artifact.path, manifest)
        libraries = {name: _open(artifact.path / name) for name in sorted({b.library for b in manifest.buckets})}
        memory = self._memory = StepMemory(artifact, num_blocks)
        self.inputs, self.residents = memory.inputs, memory.residents
        self.kv_bytes, self.kv_regions, self.touch_kv = memory.kv_bytes, memory.kv_regions, memory.touch_kv
        self._operations = max(len(b.program) for b in manifest.buckets)
        self._library = next(iter(libraries.values()))
        self.cache = memory.cache
        self._workers = WorkerPool(
            self._library,
            threads=threads,
            scratch_bytes=max(b.scratch_bytes for b in manifest.buckets),
        )
        self.threads = threads
        self._dispatcher = Dispatcher(
            [(b, StepProgram(b, libraries[b.library], memory, self._workers)) for b in manifest.buckets]
        )
        heads = min((g.spec.kv_heads for g in manifest.kv if isinstance(g.spec, AttentionSpec)), default=1)
        self.splitting = Splitting(threads, heads, max_partials(manifest.limits.max_model_len))
        self.operation_times: OperationTimes | None = None
        self._timed = self._closed = False
        self._notes: ClaimNotes | None = None
        self._task_counts: list[npt.NDArray[np.int64]] | None = None

    def program(self, descriptor: BatchDescriptor) -> StepProgram:
        """The step program that runs such a step."""
        return self._dispatcher.select(descriptor)

    def attn_tile(self, descriptor: BatchDescriptor) -> int:
        return self.program(descriptor).bucket.attn_tile

    def submit(self, step: Step) -> Step:
        """Nothing begins: `wait` computes, on all threads and that of its caller, which have nothing to wait for."""
        if self._closed:
            raise EngineError("the engine is closed")
        return step

    def wait(self, handle: Step) -> StepOutputs:
        program = self.program(handle.descriptor)
        if self._timed:
            self.operation_times = program.timed(handle.counts, self._notes)
        elif self._task_counts is not None:
            self._task_counts.append(program.count_tasks(handle.counts))
        else:
            program.run(handle.counts)
        return self.outputs(handle.counts)

    def time_operations(self, wanted: bool) -> None:
        self._timed, self.operation_times = wanted, None

    def time_workers(self, library: ctypes.CDLL | None) -> None:
        """Have the timed workers of `library` work instead of the artifact's own, which come back for None; then
        `operation_times` have claims. Not while a step runs.
        """
        self._workers.close()
        self._workers.start(self._library if library is None else library)
        self._notes = None if library is None else ClaimNotes(self.threads - 1, self._operations)

    def count_tasks(self, found: list[npt.NDArray[np.int64]] | None) -> None:
        """Run steps operation by operation, and add to `found` how many tasks each operation of each step has
        (`StepProgram.count_tasks`); no longer for None.
        """
        self._task_counts = found

    def outputs(self, counts: StepCounts) -> StepOutputs:
        """What the last step left, if it had these counts."""
        outputs = self._memory.outputs
        found = StepOutputs(outputs["tokens"][: counts.rows, None], outputs["logits"][: counts.rows])
        return replace(found, argmax=outputs["argmax"][: counts.argmax, None]) if counts.argmax else found

    def close(self) -> None:
        self._closed = True
        self._workers.close()


def check_interface(path: Path, manifest: Manifest) -> None:
    """Raise `ArtifactError` unless the artifact at `path` speaks this runtime's interface."""
    if manifest.abi != abi.ABI_VERSION:
        raise ArtifactError(
            f"{path}: kernels speak interface {manifest.abi}, this runtime {abi.ABI_VERSION}; compile it again"
        )
    if manifest.counts != (known := tuple(symbol.name for symbol in COUNTED)):
        found, own = ", ".join(manifest.counts), ", ".join(known)
        raise ArtifactError(f"{path}: kernels count {found}, this runtime {own}; compile it again")
    missing = {*INPUTS} - {i.name for i in manifest.inputs} | {*OUTPUTS} - {o.name for o in manifest.outputs}
    if missing:
        raise ArtifactError(f"{path}: the step has no {', '.join(sorted(missing))}")


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as e:
        raise ArtifactError(f"{path}: cannot be loaded: {e}") from None
