"""The module of one bucket: its task kernels, the step driver, and the worker loop, all as plain C functions.

`inferir.ir.contract.abi` is the interface.

`inferir_dispatch` runs `tasks` tasks from `first` on or, where `tasks` is negative, as many in the opposite order,
unless the kernel wants them upwards.

`inferir_step` runs the operations in order and returns when the last one is done. An operation is a ticket: tasks are
claimed by compare-and-swap by the calling thread (the leader) and by the workers, and it ends when its tasks are done,
not when every worker has answered, so a worker without a core holds up at most the tasks it has claimed. The leader
goes up from the first task and workers go down from the last, so that a thread mostly meets the rows that it has
written itself, which another core would have to fetch line by line. A claim takes
two thirds of a thread's share of the tasks that are left, `MOST_CLAIMED` at most (guided self-scheduling,
Polychronopoulos and Kuck 1987): while much is left, few words travel between cores and a thread reads memory in one
long run; the end is shared task by task. An operation of one task runs on the leader without being published. How
many tasks an operation has is known when it starts: from the step's counts, and from memory where its kernel has a
counter.

`inferir_worker` is the body of a worker thread (started by the host, any number, `tid` from 1; the leader has 0). It
calls tasks through the dispatch address in the control block, so workers outlive a step and serve every bucket's
module; the module whose `inferir_worker` runs must stay loaded. Idle workers spin, then sleep on a futex. It returns
after the stop word is set and the epoch word raised and woken (`inferir_stop(int64 *ctrl)` does all of that).

A worker that loses its core to another process in the middle of a task holds up the step until it is back. The leader
sees that it waits out of proportion and sets the late word; a worker that finds it set `LATE_EVENTS` times in short
order works `WORK_CYCLES` and naps in turn for a while, so that it gives up its core between claims and not within one.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferir.codegen.tvm.driver import claim_times, weight_prefetch
from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import COUNT_NAMES, STORED_COUNT, TaskKernel, Writer
from inferir.ir.contract import abi
from inferir.ir.errors import CodegenError

MOST_CLAIMED = 8  # tasks
# Times in cycles of the time stamp counter, 2 to 4 per nanosecond.
LATE_CYCLES = 500_000  # beyond four times the leader's own mean task
LATE_WINDOW, LATE_EVENTS = 100_000_000, 3  # so many in a row within so long are no accident
WORK_CYCLES, NAPS = 3_000_000, 32  # how long a disturbed worker works between naps, and how many it takes
_EXPORT = 'T.func_attr({{"global_symbol": "{}", "calling_conv": 2}})'
_LOW = "T.int64(4294967295)"


def scratch_bytes(kernels: Sequence[TaskKernel]) -> int:
    """Scratch memory each thread needs for any of the kernels, a multiple of 64."""
    return max([64, *(-(-k.scratch_bytes // 64) * 64 for k in kernels)])


def row_words(kernels: Sequence[TaskKernel]) -> int:
    """Words of a table row that fits every kernel's parameters."""
    return abi.row_words(max(len(k.params) for k in kernels))


def bucket_module_source(kernels: Sequence[TaskKernel], *, timed_workers: bool = False) -> str:
    """The text of a bucket's module; with `timed_workers`, its workers note when they run what (`abi.CLAIMS`).

    Raises `CodegenError` if two kernels or shared functions of one name differ.
    """
    functions: dict[str, str] = {}
    for kernel in kernels:
        for name, text in (*((f.name, f.source) for f in kernel.shared), (kernel.name, kernel.source)):
            if functions.setdefault(name, text) != text:
                raise CodegenError(f"two different functions are called {name!r} in one module")
    if len({k.name for k in kernels}) != len(kernels):
        raise CodegenError("a kernel is listed twice in one module")
    w = Writer()
    w.line("@I.ir_module")
    with w.block("class Mod:"):
        for text in functions.values():
            w.lines(text.splitlines())
        _dispatch(w, kernels)
        _step(w, kernels)
        _worker(w, timed_workers)
        _stop(w)
    return w.text()


def _counts(w: Writer) -> None:
    w.line(f'COUNT = T.decl_buffer(({abi.COUNT_WORDS},), "int32", data=counts)')
    for i, name in enumerate(COUNT_NAMES):
        w.line(f"{name}: T.let[T.int32] = COUNT[{i}]")


def _dispatch(w: Writer, kernels: Sequence[TaskKernel]) -> None:
    w.line("@T.prim_func")
    params = 'row: T.handle("int64"), first: T.int32, tasks: T.int32, counts: T.handle("int32")'
    with w.block(f'def dispatch({params}, scratch: T.handle("float32")) -> T.int32:'):
        w.line(_EXPORT.format("inferir_dispatch"))
        w.line('OP = T.decl_buffer((1,), "int64", data=row)')
        with w.block('with T.attr(T.int32(0), "pragma_import_llvm", LLVM_LIBRARY):'):
            _counts(w)
            w.line("size: T.let[T.int32] = T.max(tasks, 0 - tasks)")
            w.line("start: T.let[T.int32] = T.Select(tasks < 0, first + size - 1, first)")
            w.line("way: T.let[T.int32] = T.Select(tasks < 0, -1, 1)")
            for i, kernel in enumerate(kernels):
                pointers = "".join(f"{sync('inf_ptr', f'OP[{j + 1}]')}, " for j in range(len(kernel.params)))
                with w.block(f"{'el' if i else ''}if OP[0] == T.int64({i}):"), w.block("for c in range(size):"):
                    # After its last task a worker's next claim probably lies before those of the other workers, of
                    # like size; the leader has its end for itself.
                    at, way = ("first", "1") if kernel.upward else ("start", "way")
                    passed = f"COUNT[{abi.THREADS}] - {0 if kernel.upward else 2}"
                    others = f"T.Select(T.And(c + 1 == size, tasks < 0), tasks * ({passed}), 0)"
                    later = f"T.max(0, {at} + (c + 1) * {way} + {others})"
                    numbers = f"{at} + c * {way}, {later}, {', '.join(COUNT_NAMES)}"
                    w.line(f"T.evaluate(Mod.{kernel.name}({pointers}{numbers}, scratch))")
        w.line("return T.int32(0)")


def _address(word: str | int) -> str:
    return f"T.address_of(CTRL[{word}])"


def _step(w: Writer, kernels: Sequence[TaskKernel]) -> None:
    w.line("@T.prim_func")
    params = 'table: T.handle("int64"), n_ops: T.int32, row_words: T.int32, ctrl: T.handle("int64")'
    with w.block(f'def step({params}, counts: T.handle("int32")) -> T.int32:'):
        w.line(_EXPORT.format("inferir_step"))
        w.line('TABLE = T.decl_buffer((1,), "int64", data=table)')
        w.line(f'CTRL = T.decl_buffer(({abi.CTRL_WORDS},), "int64", data=ctrl)')
        _counts(w)
        w.line('total = T.alloc_buffer((1,), "int32")')
        w.line(f"CTRL[{abi.COUNTS}] = {sync('inf_addr', 'T.address_of(COUNT[0])')}")
        w.line(f"CTRL[{abi.DISPATCH}] = {sync('inf_dispatch_address')}")
        scratch = sync("inf_ptr", f"CTRL[{abi.SCRATCH}]")
        w.line(f"workers: T.let[T.int32] = T.cast(CTRL[{abi.WORKERS}], 'int32')")
        w.line(f"COUNT[{abi.THREADS}] = workers + 1")
        _stamp(w, "0")
        with w.block("for i in range(n_ops):"):
            w.line("total[0] = 0")
            for i, kernel in enumerate(kernels):
                with w.block(f"{'el' if i else ''}if TABLE[i * row_words] == T.int64({i}):"):
                    if kernel.counter is not None:
                        stored = sync("inf_ptr", f"TABLE[i * row_words + {1 + kernel.counter}]")
                        w.line(f"{STORED_COUNT}: T.let[T.int32] = T.max({sync('inf_load_i32', stored)}, 0)")
                    w.line(f"total[0] = {kernel.tasks}")
            row = "T.address_of(TABLE[i * row_words])"
            with w.block("if T.Or(total[0] == 1, workers == 0):"):
                w.line(f"T.evaluate(Mod.dispatch({row}, 0, total[0], counts, {scratch}))")
            with w.block("elif total[0] > 1:"):
                w.line(f"CTRL[{abi.ROW}] = {sync('inf_addr', row)}")
                weight_prefetch.publish(w, kernels)
                w.line(f"T.evaluate(Mod.run_op(ctrl, {row}, counts, {scratch}, total[0]))")
            _stamp(w, "i + 1")
        w.line("return T.int32(0)")
    _run_op(w)


def _stamp(w: Writer, index: str) -> None:
    with w.block(f"if CTRL[{abi.PROFILE}] != T.int64(0):"):
        w.line(f"T.evaluate({sync('inf_stamp', f'CTRL[{abi.PROFILE}]', index)})")


def _run_op(w: Writer) -> None:
    """Publish an operation, take part in it, and wait for its last task."""
    w.line("@T.prim_func(private=True)")
    params = 'ctrl: T.handle("int64"), row: T.handle("int64"), counts: T.handle("int32"), scratch: T.handle("float32")'
    with w.block(f"def run_op({params}, total: T.int32) -> T.int32:"):
        w.line(f'CTRL = T.decl_buffer(({abi.CTRL_WORDS},), "int64", data=ctrl)')
        w.line('more = T.alloc_buffer((1,), "int32")')
        w.line('own = T.alloc_buffer((1,), "int64")')
        w.line("own[0] = T.int64(1)")
        w.line(f"threads: T.let[T.int32] = T.cast(CTRL[{abi.WORKERS}], 'int32') + 1")
        w.line(f"T.evaluate({sync('inf_store_i32', _address(abi.LATE), 'T.int32(0)')})")
        w.line(f"T.evaluate({sync('inf_store_i64', _address(abi.DONE), 'T.int64(0)')})")
        ticket = "T.shift_left(T.cast(total, 'int64'), T.int64(32))"
        w.line(f"T.evaluate({sync('inf_store_i64', _address(abi.TICKET), ticket)})")
        with w.block(f"if {sync('inf_load_i32', _address(abi.SLEEPERS))} > 0:"):
            _wake(w)
        w.line(f"start: T.let[T.int64] = {sync('inf_cycles')}")
        w.line("more[0] = 1")
        with w.block("while more[0] == 1:"):
            _read_ticket(w)
            with w.block("if task >= end:"):
                w.line("more[0] = 0")
            with w.block("else:"):
                w.line(f"claim: T.let[T.int32] = {_claim('end - task')}")
                taken = "T.cast(claim, 'int64')"
                with w.block(f"if {sync('inf_cas_i64', _address(abi.TICKET), 'ticket', f'ticket + {taken}')} == 1:"):
                    w.line("T.evaluate(Mod.dispatch(row, task, claim, counts, scratch))")
                    w.line(f"T.evaluate({sync('inf_add_i64', _address(abi.DONE), taken)})")
                    w.line(f"own[0] = own[0] + {taken}")
        w.line("more[0] = 0")
        w.line(f"ready: T.let[T.int64] = {sync('inf_cycles')}")
        patience = f"T.truncdiv((ready - start) * T.int64(4), own[0]) + T.int64({LATE_CYCLES})"
        w.line(f"patience: T.let[T.int64] = {patience}")
        with w.block(f"while {sync('inf_load_i64', _address(abi.DONE))} < T.cast(total, 'int64'):"):
            with w.block("if more[0] < 2000:"):
                weight_prefetch.prefetch(w, "more[0]", weight_prefetch.LEADER, _claim)
                w.line("more[0] = more[0] + 1")
                w.line(f"T.evaluate({sync('inf_pause')})")
            with w.block("else:"):
                w.line(f"T.evaluate({sync('inf_yield')})")
                with w.block(f"if {sync('inf_cycles')} - ready > patience:"):
                    w.line(f"T.evaluate({sync('inf_store_i32', _address(abi.LATE), 'T.int32(1)')})")
        w.line("return T.int32(0)")


def _read_ticket(w: Writer) -> None:
    """Load the ticket, and from it the first task that is left and the end of those that are."""
    w.line(f"ticket: T.let[T.int64] = {sync('inf_load_i64', _address(abi.TICKET))}")
    w.line(f"task: T.let[T.int32] = T.cast(T.bitwise_and(ticket, {_LOW}), 'int32')")
    w.line("end: T.let[T.int32] = T.cast(T.shift_right(ticket, T.int64(32)), 'int32')")


def _claim(left: str) -> str:
    """How many of the `left` tasks one of `threads` threads takes."""
    return f"T.max(1, T.min({MOST_CLAIMED}, T.truncdiv(({left}) * 2, threads * 3)))"


def _wake(w: Writer) -> None:
    w.line(f"T.evaluate({sync('inf_add_i32', _address(abi.EPOCH), 'T.int32(1)')})")
    w.line(f"T.evaluate({sync('inf_futex_wake', _address(abi.EPOCH), 'T.int32(1000000)')})")


def _worker(w: Writer, timed: bool) -> None:
    w.line("@T.prim_func")
    with w.block('def worker(ctrl: T.handle("int64"), tid: T.int32) -> T.int32:'):
        w.line(_EXPORT.format("inferir_worker"))
        w.line(f'CTRL = T.decl_buffer(({abi.CTRL_WORDS},), "int64", data=ctrl)')
        w.line('idle = T.alloc_buffer((1,), "int32")')
        w.line("idle[0] = 0")
        for name in ("naps", "since", "lates", "last"):
            w.line(f'{name} = T.alloc_buffer((1,), "int64")')
            w.line(f"{name}[0] = T.int64(0)")
        at = f"CTRL[{abi.SCRATCH}] + CTRL[{abi.SCRATCH_BYTES}] * T.cast(tid, 'int64')"
        scratch = sync("inf_ptr", at)
        w.line(f"spin: T.let[T.int32] = T.cast(CTRL[{abi.SPIN}], 'int32')")
        w.line(f"threads: T.let[T.int32] = T.cast(CTRL[{abi.WORKERS}], 'int32') + 1")
        with w.block(f"while {sync('inf_load_i32', _address(abi.STOP))} == 0:"):
            _claim_and_run(w, scratch, timed)
            with w.block("elif idle[0] < spin:"):
                weight_prefetch.prefetch(w, "idle[0]", "tid", _claim)
                w.line("idle[0] = idle[0] + 1")
                w.line(f"T.evaluate({sync('inf_pause')})")
            with w.block("else:"):
                # Count this worker as sleeping before the last look at the ticket: whoever publishes looks at the count
                # after.
                w.line(f"T.evaluate({sync('inf_add_i32', _address(abi.SLEEPERS), 'T.int32(1)')})")
                w.line(f"epoch: T.let[T.int32] = {sync('inf_load_i32', _address(abi.EPOCH))}")
                w.line(f"again: T.let[T.int64] = {sync('inf_load_i64', _address(abi.TICKET))}")
                stopped = f"{sync('inf_load_i32', _address(abi.STOP))} == 1"
                waiting = f"T.bitwise_and(again, {_LOW}) < T.shift_right(again, T.int64(32))"
                with w.block(f"if T.Not(T.Or({stopped}, {waiting})):"):
                    w.line(f"T.evaluate({sync('inf_futex_wait', _address(abi.EPOCH), 'epoch')})")
                w.line(f"T.evaluate({sync('inf_add_i32', _address(abi.SLEEPERS), 'T.int32(-1)')})")
                w.line("idle[0] = 0")
        w.line("return T.int32(0)")


def _claim_and_run(w: Writer, scratch: str, timed: bool) -> None:
    """An if-branch that takes a task if there is one; the operation's fields are read after the claim that pins it."""
    _read_ticket(w)
    with w.block("if task < end:"):
        w.line("idle[0] = 0")
        w.line(f"claim: T.let[T.int32] = {_claim('end - task')}")
        taken = "T.cast(claim, 'int64')"
        rest = f"ticket - T.shift_left({taken}, T.int64(32))"
        with w.block(f"if {sync('inf_cas_i64', _address(abi.TICKET), 'ticket', rest)} == 1:"):
            row, counts = (sync("inf_ptr", sync("inf_load_i64", _address(word))) for word in (abi.ROW, abi.COUNTS))
            function = sync("inf_load_i64", _address(abi.DISPATCH))
            if timed:
                claim_times.begin(w)
            w.line(f"T.evaluate({sync('inf_call', function, row, 'end - claim', '0 - claim', counts, scratch)})")
            if timed:
                claim_times.end(w)
            w.line(f"late: T.let[T.int32] = {sync('inf_load_i32', _address(abi.LATE))}")
            w.line(f"T.evaluate({sync('inf_add_i64', _address(abi.DONE), taken)})")
            _give_way(w)


def _give_way(w: Writer) -> None:
    """After a claim: count late ones, and nap between claims while another process wants the core."""
    with w.block("if T.Or(late == 1, naps[0] > T.int64(0)):"):
        w.line(f"now: T.let[T.int64] = {sync('inf_cycles')}")
        with w.block("if late == 1:"):
            again = f"now - last[0] < T.int64({LATE_WINDOW})"
            w.line(f"lates[0] = T.Select({again}, lates[0] + T.int64(1), T.int64(1))")
            w.line("last[0] = now")
            with w.block(f"if lates[0] >= T.int64({LATE_EVENTS}):"):
                w.line(f"naps[0] = T.int64({NAPS})")
        with w.block(f"if T.And(naps[0] > T.int64(0), now - since[0] > T.int64({WORK_CYCLES})):"):
            w.line("naps[0] = naps[0] - T.int64(1)")
            w.line(f"T.evaluate({sync('inf_nap')})")
            w.line(f"since[0] = {sync('inf_cycles')}")


def _stop(w: Writer) -> None:
    w.line("@T.prim_func")
    with w.block('def stop(ctrl: T.handle("int64")) -> T.int32:'):
        w.line(_EXPORT.format("inferir_stop"))
        w.line(f'CTRL = T.decl_buffer(({abi.CTRL_WORDS},), "int64", data=ctrl)')
        w.line(f"T.evaluate({sync('inf_store_i32', _address(abi.STOP), 'T.int32(1)')})")
        _wake(w)
        w.line("return T.int32(0)")
