"""What the kernel tests share: instruction sets this machine can run, aligned arrays, building and loading modules."""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from inferir.codegen.tvm.build.build_module import build_module
from inferir.codegen.tvm.driver import step_driver as pool
from inferir.codegen.tvm.kernels.rowwise_region import rowwise_kernel
from inferir.codegen.tvm.source import COUNT_NAMES, TaskKernel
from inferir.ir.contract import abi
from inferir.ir.contract.target import TARGETS, Target, host_features, missing_features
from inferir.ir.graph.interpreter import run_body
from inferir.testing.kernel_runs import aligned as aligned_copy
from inferir.testing.kernel_runs import to_array, to_tensor
from inferir.testing.row_cases import Case

_HAVE = host_features()


@pytest.fixture(params=[t.name for t in TARGETS.values() if t.kind == "cpu"])
def target(request: pytest.FixtureRequest) -> Target:
    """Every CPU target this machine can run."""
    target = Target.named(request.param)
    if missing_features(target, _HAVE):
        pytest.skip(f"this machine cannot run {target.name}")
    return target


@pytest.fixture
def host() -> Target:
    """The richest CPU target this machine can run."""
    return Target.host()


@pytest.fixture
def aligned() -> Callable[[Any], np.ndarray]:
    """Copy an array to memory aligned to 64 bytes."""
    return aligned_copy


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Target], ctypes.CDLL]:
    """Build module text and load the shared object; the same text is built once."""
    folder = tmp_path_factory.mktemp("modules")
    loaded: dict[tuple[str, str], ctypes.CDLL] = {}

    def build_and_load(source: str, target: Target) -> ctypes.CDLL:
        key = (source, target.name)
        if key not in loaded:
            path = folder / f"module{len(loaded)}.so"
            path.write_bytes(build_module(source, target))
            loaded[key] = ctypes.CDLL(str(path))
        return loaded[key]

    return build_and_load


class StepRunner:
    """Builds kernels into one module and runs steps on numpy arrays, with worker threads: a host side for tests."""

    def __init__(self, kernels: Sequence[TaskKernel], library: ctypes.CDLL, workers: int, spin: int = 200) -> None:
        self._library = library
        self._words = pool.row_words(kernels)
        size = pool.scratch_bytes(kernels)
        self._scratch = aligned_copy(np.zeros(size * (workers + 1), np.uint8))
        self.ctrl = aligned_copy(np.zeros(abi.CTRL_WORDS, np.int64))
        self._counts = aligned_copy(np.zeros(abi.COUNT_WORDS, np.int32))
        self.ctrl[[abi.WORKERS, abi.SPIN, abi.SCRATCH, abi.SCRATCH_BYTES]] = (
            workers,
            spin,
            self._scratch.ctypes.data,
            size,
        )
        ctrl = ctypes.c_void_p(self.ctrl.ctypes.data)
        self._threads = [
            threading.Thread(target=library.inferir_worker, args=(ctrl, ctypes.c_int32(i + 1)), daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def table(self, operations: Sequence[tuple[int, Sequence[np.ndarray]]]) -> np.ndarray:
        """The operation table: kernel numbers and arrays (which the caller keeps alive)."""
        table = aligned_copy(np.zeros((len(operations), self._words), np.int64))
        for row, (kernel, arrays) in zip(table, operations, strict=True):
            row[: 1 + len(arrays)] = [kernel, *(a.ctypes.data for a in arrays)]
        return table

    def step(self, table: np.ndarray, **counts: int) -> None:
        """Run `table` with the given counts (`COUNT_NAMES`), the others 0."""
        assert not counts.keys() - set(COUNT_NAMES)
        self._counts[: len(COUNT_NAMES)] = [counts.get(name, 0) for name in COUNT_NAMES]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (table, self.ctrl, self._counts)]
        self._library.inferir_step(pointers[0], len(table), self._words, pointers[1], pointers[2])

    def shared_tasks(self, table: np.ndarray, **counts: int) -> int:
        """Run a step of one operation and return the number of tasks that the driver had. There must be workers."""
        self.ctrl[abi.DONE] = 0
        self.step(table, **counts)
        return max(1, int(self.ctrl[abi.DONE]))  # a single task makes no ticket

    def run_task(self, table: np.ndarray, task: int) -> None:
        """Run one task of the first operation alone, with the counts of the last step."""
        row, counts, scratch = (ctypes.c_void_p(a.ctypes.data) for a in (table, self._counts, self._scratch))
        self._library.inferir_dispatch(row, ctypes.c_int32(task), ctypes.c_int32(1), counts, scratch)

    def close(self) -> None:
        self._library.inferir_stop(ctypes.c_void_p(self.ctrl.ctypes.data))
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def runner(load: Callable[[str, Target], ctypes.CDLL]) -> Iterator[Callable[..., StepRunner]]:
    """`runner(kernels, target, workers=0)`: kernels built into a module, ready to run; workers, which may be timed,
    stop at the end.
    """
    opened: list[StepRunner] = []

    def open_runner(
        kernels: Sequence[TaskKernel], target: Target, workers: int = 0, *, timed: bool = False, **options: int
    ) -> StepRunner:
        source = pool.bucket_module_source(kernels, timed_workers=timed)
        opened.append(StepRunner(kernels, load(source, target), workers, **options))
        return opened[-1]

    yield open_runner
    for r in opened:
        r.close()


@pytest.fixture
def run(runner: Callable[..., StepRunner], aligned: Callable[[Any], np.ndarray]) -> Callable[..., list[torch.Tensor]]:
    """Run a case's kernel for the given target; returns the body's outputs in order."""

    def go(case: Case, target: Target, workers: int = 0) -> list[torch.Tensor]:
        kernel = rowwise_kernel("k", case.body)
        reference = run_body(case.body, case.tensors)
        arrays = [aligned(to_array(t)) for t in case.tensors]
        results = []
        for value, want in zip(case.body.outputs, reference, strict=True):
            if value.op == "kv.write":
                results.append(arrays[case.body.inputs.index(value.node.operands[0])])
            else:
                arrays.append(aligned(np.zeros_like(to_array(want.contiguous()))))
                results.append(arrays[-1])
        step = runner([kernel], target, workers)
        step.step(step.table([(0, arrays)]), n_t=case.rows, n_r=case.rows)
        return [to_tensor(a, t) for a, t in zip(results, reference, strict=True)]

    return go
