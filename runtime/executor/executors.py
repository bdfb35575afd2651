"""Which executor runs the kernels of which kind of target."""

from __future__ import annotations

from typing import Protocol

from inferir.ir.contract.target import Target
from inferir.ir.errors import TargetError
from inferir.ir.plugin_registry import PluginRegistry
from inferir.runtime.executor.base import Executor
from inferir.runtime.loader import LoadedArtifact


class ExecutorKind(Protocol):
    """Makes executors for one kind of target."""

    def check_target(self, target: Target) -> None:
        """Raise `TargetError` naming what this machine lacks, unless it can run kernels that were made for `target`."""

    def __call__(self, artifact: LoadedArtifact, num_blocks: int, threads: int) -> Executor:
        """An executor with a KV cache of `num_blocks` blocks. Raises `ArtifactError` or `EngineError`."""


EXECUTORS: PluginRegistry[ExecutorKind] = PluginRegistry("executors", "executor", TargetError)
EXECUTORS.add("cpu", "inferir.runtime.executor.cpu.cpu_executor:CpuExecutor")


def executor_for(target: Target) -> ExecutorKind:
    """Raises `TargetError` naming the kinds there are if there is none for the target's."""
    try:
        return EXECUTORS.get(target.kind)
    except TargetError as error:
        raise TargetError(f"the artifact was compiled for {target.name} ({target.kind}): {error}") from None


def check_target(target: Target) -> None:
    """Raise `TargetError` unless this machine can run kernels that were made for `target`."""
    executor_for(target).check_target(target)
