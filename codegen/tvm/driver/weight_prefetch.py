"""Threads without work prefetch the weights that they will need first in a later operation.

An operation ends when its last task is done, and until then the threads that found no task left would let memory
rest: a task is 2 to 10 microseconds of reading. Which thread will read what is a guess: the leader takes the first
tasks of an operation, workers the last ones in turn. A wrong guess costs reads, never a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import TaskKernel, Writer
from inferir.ir.contract import abi

LEADER = "0"  # its thread number
DISTANCE = 8  # operations that are looked at; a layer has one that streams among any five
LINES_ASKED = 8  # cache lines each time that a thread finds no work
_MOST_BYTES = 256 * 1024  # a part of the second-level cache


def publish(w: Writer, kernels: Sequence[TaskKernel]) -> None:
    """Leave in the control block what the next operation after `i` that streams will read, round the table's end.

    The address is written last: threads that find it look at the rest. What an operation with a counter will read is
    not known before it starts.
    """
    w.line(f"CTRL[{abi.PREFETCH}] = T.int64(0)")
    streaming = [(number, k, k.stream) for number, k in enumerate(kernels) if k.stream and k.counter is None]
    if not streaming:
        return
    with w.block(f"for j in range({DISTANCE}):"), w.block(f"if CTRL[{abi.PREFETCH}] == T.int64(0):"):
        w.line("op: T.let[T.int32] = T.truncmod(i + 1 + j, n_ops) * row_words")
        for position, (number, kernel, stream) in enumerate(streaming):
            with w.block(f"{'el' if position else ''}if TABLE[op] == T.int64({number}):"):
                w.line(f"upcoming: T.let[T.int32] = {kernel.tasks}")
                with w.block("if upcoming > 0:"):
                    readers = f"T.cast({stream.readers}, 'int64')"
                    signed = stream.task_bytes if kernel.upward else -stream.task_bytes
                    w.line(f"CTRL[{abi.PREFETCH_BYTES}] = T.truncdiv(T.int64({signed}), {readers})")
                    w.line(f"CTRL[{abi.PREFETCH_TASKS}] = T.cast(upcoming, 'int64')")
                    w.line(f"CTRL[{abi.PREFETCH}] = TABLE[op + {1 + stream.param}]")


def prefetch(w: Writer, look: str, tid: str, claim: Callable[[str], str]) -> None:
    """Prefetch the next lines of what thread `tid` will probably claim, when it finds no work for the `look`-th time.

    `claim` writes how many of the tasks that are left, a TIR expression, a thread claims.
    """
    with w.block(f"if {_word(abi.PREFETCH)} != T.int64(0):"):
        w.line(f"tasks: T.let[T.int32] = T.cast({_word(abi.PREFETCH_TASKS)}, 'int32')")
        w.line(f"share: T.let[T.int32] = {claim('tasks')}")
        w.line(f"signed: T.let[T.int64] = {_word(abi.PREFETCH_BYTES)}")
        w.line("bytes: T.let[T.int64] = T.max(T.max(signed, T.int64(0) - signed), T.int64(1))")
        w.line(f"size: T.let[T.int64] = T.min(bytes * T.cast(share, 'int64'), T.int64({_MOST_BYTES}))")
        w.line(f"at: T.let[T.int64] = T.cast({look} * {64 * LINES_ASKED}, 'int64')")
        w.line("passed: T.let[T.int32] = T.cast(T.truncdiv(at, bytes), 'int32')")
        if tid == LEADER:
            first, task = "0", "passed"
        else:
            first = f"tasks - share * {tid}"
            task = "T.Select(signed < T.int64(0), first + share - 1 - passed, first + passed)"
        w.line(f"first: T.let[T.int32] = {first}")
        with w.block("if T.And(first >= 0, at < size):"):
            w.line(f"task: T.let[T.int32] = {task}")
            start = "bytes * T.cast(task, 'int64') + T.truncmod(at, bytes)"
            w.line(f"begin: T.let[T.int64] = {_word(abi.PREFETCH)} + {start}")
            for line in range(LINES_ASKED):
                address = sync("inf_ptr", f"begin + T.int64({64 * line})")
                w.line(f"T.evaluate({sync('inf_prefetch_read', address)})")


def _word(word: int) -> str:
    return sync("inf_load_i64", f"T.address_of(CTRL[{word}])")
