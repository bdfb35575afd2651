"""The step driver: every task runs exactly once, operations run in order, with any number of workers."""

import ctypes
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferir.codegen.tvm.build.build_module import build_module
from inferir.codegen.tvm.driver import step_driver as pool
from inferir.codegen.tvm.source import STORED_COUNT, Param, PrivateFunction, Stream, TaskKernel, Writer, entry_head
from inferir.ir.contract import abi
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.runtime.executor.cpu.claim_notes import ClaimNotes


def _kernel(name: str, tasks: str, statement: str) -> TaskKernel:
    """A kernel on int32 arrays X and Y."""
    params = (Param("x", "int32"), Param("y", "int32"))
    w = Writer()
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head(name, params)):
        w.line('X = T.decl_buffer((1,), "int32", data=x)')
        w.line('Y = T.decl_buffer((1,), "int32", data=y)')
        w.line(statement)
        w.line("return T.int32(0)")
    return TaskKernel(name, params, w.text(), tasks)


def _add(name: str, tasks: str, amount: int) -> TaskKernel:
    """y[task] = x[task] + amount."""
    return _kernel(name, tasks, f"Y[task] = X[task] + {amount}")


def _sum(name: str) -> TaskKernel:
    """One task that sums x over n_t and stores it in y[0..n_t)."""
    params = (Param("x", "int32"), Param("y", "int32"))
    w = Writer()
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head(name, params)):
        w.line('X = T.decl_buffer((1,), "int32", data=x)')
        w.line('Y = T.decl_buffer((1,), "int32", data=y)')
        w.line('S = T.decl_buffer((1,), "float32", data=scratch)')
        w.line("S[0] = T.float32(0)")
        with w.block("for i in range(n_t):"):
            w.line('S[0] = S[0] + T.cast(X[i], "float32")')
        with w.block("for i in range(n_t):"):
            w.line('Y[i] = T.cast(S[0], "int32")')
        w.line("return T.int32(0)")
    return TaskKernel(name, params, w.text(), "1", 64)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("spin", [0, 500])
def test_many_steps_are_exact(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray], workers: int, spin: int
) -> None:
    """Each operation reads what the one before wrote, so a task that is lost, doubled or early changes the result."""
    kernels = [_add("add3", "n_t", 3), _sum("total"), _add("add5", "n_t + n_s * 0", 5)]
    run = runner(kernels, host, workers, spin=spin)
    buffers = [aligned(np.zeros(300, np.int32)) for _ in range(4)]
    order = [(0, 0, 1), (2, 1, 2), (0, 2, 3), (1, 3, 1), (2, 1, 0)]
    table = run.table([(k, (buffers[a], buffers[b])) for k, a, b in order])
    rng = np.random.default_rng(0)
    for count in [1, 2, 300, *rng.integers(1, 300, 200)]:
        x = rng.integers(0, 9, count)
        buffers[0][:count] = x
        for other in buffers[1:]:
            other[:] = -1
        run.step(table, n_t=int(count))
        np.testing.assert_array_equal(buffers[3][:count], x + 11)
        np.testing.assert_array_equal(buffers[0][:count], (x + 11).sum() + 5)
        assert (buffers[2][count:] == -1).all()


@pytest.mark.parametrize("upward", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_task_knows_which_one_comes_later(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray], workers: int, upward: bool
) -> None:
    """The leader goes up from the first task, workers go down from the last, each claim in the kernel's order; a
    worker leaves out what other workers probably claim after it."""
    kernel = dataclasses.replace(_kernel("later", "n_t", "Y[task] = later - task"), upward=upward)
    run = runner([kernel], host, workers)
    x, y = (aligned(np.zeros(100, np.int32)) for _ in range(2))
    table = run.table([(0, (x, y))])
    for _ in range(50):
        y[:] = 100
        run.step(table, n_t=100)
        if not workers:
            assert (y == 1).all()
            continue
        # A worker's claim of n tasks ends with its last or, run downwards, with its first task.
        ends = np.flatnonzero(y != 1) if upward else np.flatnonzero((y < -1) | ((y == -1) & (workers == 1)))
        for end in ends:
            if y[end] == -end:  # nothing comes before task 0
                continue
            if workers == 1 and not upward:
                assert y[end] == -1
                continue
            size, rest = divmod(1 - y[end] if upward else -1 - y[end], workers + 1 if upward else workers - 1)
            assert rest == 0
            assert 1 <= size <= pool.MOST_CLAIMED
            others = y[end - size + 1 : end] if upward else y[end + 1 : end + size]
            assert (others == (1 if upward else -1)).all()
        assert (np.diff(np.sign(y)) <= 0).all() or upward  # the leader's tasks, then those of workers


def test_it_is_announced_what_threads_without_work_may_read_ahead(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray]
) -> None:
    streams = dataclasses.replace(_add("streams", "n_t * 2", 1), stream=Stream(1, 64))
    plain = _add("plain", "n_t", 1)
    x, y, z = (aligned(np.zeros(40, np.int32)) for _ in range(3))
    words = [abi.PREFETCH, abi.PREFETCH_BYTES, abi.PREFETCH_TASKS]
    absent = dataclasses.replace(_add("absent", "n_r * 2", 1), stream=Stream(1, 64))
    shared = Stream(1, 64, "n_s")  # 4 tasks in a row read the same
    panels = dataclasses.replace(_add("panels", "n_t", 1), stream=shared, upward=True)
    step = runner([plain, streams, absent, panels], host, 1)
    for operations, expected in (
        ([(1, (x, y)), (0, (x, z)), (1, (x, z)), (0, (x, y))], y),  # the first of the next step
        ([(0, (x, z)), (0, (x, z)), (1, (x, z))], z),
        ([(0, (x, z)), (2, (x, y)), (1, (x, z))], z),  # not what has no tasks in this step
    ):
        step.step(step.table(operations), n_t=20)
        assert step.ctrl[words].tolist() == [expected.ctypes.data, -64, 40]
    step.step(step.table([(0, (x, z)), (3, (x, y))]), n_t=20, n_s=4)
    assert step.ctrl[words].tolist() == [y.ctypes.data, 16, 20]
    step.step(step.table([(0, (x, z))]), n_t=20)
    assert step.ctrl[abi.PREFETCH] == 0
    # Nothing is left of an earlier bucket where no kernel streams.
    step = runner([plain], host, 1)
    step.ctrl[abi.PREFETCH] = y.ctypes.data
    step.step(step.table([(0, (x, z))]), n_t=20)
    assert step.ctrl[abi.PREFETCH] == 0


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_operation_may_count_its_tasks_by_what_the_one_before_has_left_in_memory(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray], workers: int
) -> None:
    """The count is known when the operation starts, not before: the first operation of the same step writes it."""
    choose = _kernel("choose", "1", "Y[0] = X[0] - 10")
    filled = _kernel("fill", f"{STORED_COUNT} * n_s", "Y[task] = X[0] * 100 + task")
    fill = dataclasses.replace(filled, counter=0)
    run = runner([choose, fill, _add("add3", "n_t", 3)], host, workers)
    wish, count, filled_to, copied = (aligned(np.zeros(256, np.int32)) for _ in range(4))
    table = run.table([(0, (wish, count)), (1, (count, filled_to)), (2, (filled_to, copied))])
    for wanted in (0, 1, 2, 60, 0, -7, 33, 1, 80) * 20:
        wish[0] = wanted + 10
        filled_to[:], copied[:] = -1, 0
        run.step(table, n_t=256, n_s=3)
        tasks = max(wanted, 0) * 3
        assert count[0] == wanted
        np.testing.assert_array_equal(filled_to[:tasks], wanted * 100 + np.arange(tasks))
        assert (filled_to[tasks:] == -1).all()
        np.testing.assert_array_equal(copied, filled_to + 3)


def test_what_is_counted_in_memory_is_not_announced(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray]
) -> None:
    counted = dataclasses.replace(_add("counted", STORED_COUNT, 1), stream=Stream(1, 64), counter=0)
    run = runner([_add("plain", "n_t", 1), counted], host, 1)
    x, y = (aligned(np.full(40, 4, np.int32)) for _ in range(2))
    run.step(run.table([(0, (x, y)), (1, (x, y))]), n_t=20)
    assert run.ctrl[abi.PREFETCH] == 0


def test_workers_serve_the_modules_of_several_buckets(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    run = runner([_add("first", "n_t", 1)], host, 2)
    other = tmp_path / "other.so"
    other.write_bytes(build_module(pool.bucket_module_source([_add("second", "n_t", 100)]), host))
    second = ctypes.CDLL(str(other))
    x, y = (aligned(np.zeros(64, np.int32)) for _ in range(2))
    table, counts = run.table([(0, (x, y))]), aligned(np.array([64, 0, 0, 0, 0, 0, 0, 0], np.int32))
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (table, run.ctrl, counts)]
    for _ in range(200):
        run.step(table, n_t=64)
        assert (y == 1).all()
        second.inferir_step(pointers[0], 1, table.shape[1], pointers[1], pointers[2])
        assert (y == 100).all()


def test_a_worker_that_is_late_is_noticed_and_loses_nothing(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray]
) -> None:
    """Task 1 sleeps, like one whose core is taken away; task 0 ends as soon as somebody else has begun it."""
    pause, nap = (f'T.evaluate(T.call_extern("int32", "{name}"))' for name in ("inf_pause", "inf_nap"))
    begun = 'T.call_extern("int32", "inf_load_i32", T.address_of(Y[32]))'
    begin = 'T.evaluate(T.call_extern("int32", "inf_store_i32", T.address_of(Y[32]), T.int32(1)))'
    last = f"if task == 1:\n        {begin}\n        for i in range(5):\n            {nap}"
    first = f"else:\n        while {begun} == 0:\n            {pause}"
    slow = _kernel("slow", "2", f"{last}\n    {first}\n    Y[task] = X[task] + 1")
    run = runner([slow, _add("add3", "n_t", 3)], host, workers=1, spin=20000)
    x, y, z = (aligned(np.arange(64, dtype=np.int32)) for _ in range(3))
    table, after = run.table([(0, (x, y))]), run.table([(1, (y, z))])
    late = False
    for _ in range(200):
        y[:] = 0
        run.step(table, n_t=2)
        late |= bool(run.ctrl[abi.LATE])
        run.step(after, n_t=2)
        assert y[:2].tolist() == [1, 2]
        assert z[:2].tolist() == [4, 5]
        if late:
            break
    assert late


def test_time_stamps(host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray]) -> None:
    run = runner([_add("add1", "n_t", 1)], host)
    x, y, stamps = (aligned(np.zeros(64, np.int64)) for _ in range(3))
    run.ctrl[abi.PROFILE] = stamps.ctypes.data
    run.step(run.table([(0, (x, y))] * 3), n_t=2)
    assert (np.diff(stamps[:4]) > 0).all()
    assert (stamps[4:] == 0).all()


def test_timed_workers_note_what_they_ran(
    host: Target, runner: Callable[..., Any], aligned: Callable[..., np.ndarray]
) -> None:
    """Together with what the leader claimed, which the ticket tells, that is every task of the last operation."""
    run = runner([_add("add1", "n_t", 1)], host, 1, timed=True)
    x, y = (aligned(np.zeros(5000, np.int32)) for _ in range(2))
    table = run.table([(0, (x, y))] * 3)
    notes = ClaimNotes(workers=1, operations=3)
    run.ctrl[abi.CLAIMS] = notes.address
    for _ in range(2000):
        notes.begin(table.ctypes.data, table.shape[-1] * 8, 3)
        run.step(table, n_t=5000)
        (operations,) = notes.taken()
        assert int(run.ctrl[abi.TICKET] & 0xFFFFFFFF) + operations[2, 3] == 5000
        for first, last, worked, tasks in operations.tolist():
            assert (first < last and 0 < worked <= last - first) if tasks else first == last == worked == 0
        if operations[:, 3].all():
            break
    assert operations[:, 3].all()
    assert (np.diff(operations[:, 0]) > 0).all()
    run.ctrl[abi.CLAIMS] = 0
    run.step(table, n_t=5000)
    assert (notes.taken() == operations).all()


def test_the_module_needs_nothing_from_outside(host: Target, tmp_path: Path) -> None:
    path = tmp_path / "module.so"
    path.write_bytes(build_module(pool.bucket_module_source([_add("add1", "n_t", 1)]), host))
    text = path.read_bytes()
    assert b"TVM" not in text
    assert b"libc" not in text
    library = ctypes.CDLL(str(path))
    for name in ("inferir_step", "inferir_dispatch", "inferir_worker", "inferir_stop"):
        assert hasattr(library, name)


def test_row_words_and_scratch_fit_all_kernels() -> None:
    wide = TaskKernel("wide", tuple(Param(f"p{i}", "int32") for i in range(9)), "", "1", 130)
    assert pool.row_words([wide, _sum("total")]) == 16
    assert pool.row_words([_sum("total")]) == 8
    assert pool.scratch_bytes([wide, _sum("total")]) == 192


def test_clashing_names_are_refused() -> None:
    a, b = _add("same", "n_t", 1), _add("same", "n_t", 2)
    with pytest.raises(CodegenError, match="'same'"):
        pool.bucket_module_source([a, b])
    with pytest.raises(CodegenError, match="twice"):
        pool.bucket_module_source([a, a])
    shared = [TaskKernel(f"k{i}", (), "", "1", 0, (PrivateFunction("f", f"text {i}"),)) for i in range(2)]
    with pytest.raises(CodegenError, match="'f'"):
        pool.bucket_module_source(shared)
