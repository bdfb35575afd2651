"""Workers that note when they run what, for profiles: `inferir.ir.contract.abi.CLAIMS` says where.

A note is written before the claimed tasks are counted as done, so all notes of a step are there when it ends.
"""

from __future__ import annotations

from inferir.codegen.tvm.llvm.llvm_lib import sync
from inferir.codegen.tvm.source import Writer
from inferir.ir.contract import abi

_FIRST, _LAST, _WORKED, _TASKS = range(4)


def begin(w: Writer) -> None:
    """Before a claim runs."""
    w.line(f"begun: T.let[T.int64] = {sync('inf_cycles')}")


def end(w: Writer) -> None:
    """After a claim of `claim` tasks has run, while the operation's row is still published."""
    w.line(f"ended: T.let[T.int64] = {sync('inf_cycles')}")
    w.line(f"claims: T.let[T.int64] = {_word(abi.CLAIMS)}")
    with w.block("if claims != T.int64(0):"):
        table, row_bytes, worker_bytes = (_at(f"claims + T.int64({8 * i})") for i in range(3))
        w.line(f"operation: T.let[T.int64] = T.truncdiv({_word(abi.ROW)} - {table}, {row_bytes})")
        place = f"T.cast(tid - 1, 'int64') * {worker_bytes} + operation * T.int64({8 * abi.CLAIM_WORDS})"
        w.line(f"note: T.let[T.int64] = claims + T.int64({8 * abi.CLAIMS_HEAD}) + {place}")
        first, last, worked, tasks = (f"note + T.int64({8 * i})" for i in (_FIRST, _LAST, _WORKED, _TASKS))
        with w.block(f"if {_at(tasks)} == T.int64(0):"):
            _put(w, first, "begun")
        _put(w, last, "ended")
        _put(w, worked, f"{_at(worked)} + ended - begun")
        _put(w, tasks, f"{_at(tasks)} + T.cast(claim, 'int64')")


def _word(word: int) -> str:
    return sync("inf_load_i64", f"T.address_of(CTRL[{word}])")


def _at(address: str) -> str:
    return sync("inf_get_i64", sync("inf_ptr", address))


def _put(w: Writer, address: str, value: str) -> None:
    w.line(f"T.evaluate({sync('inf_put_i64', sync('inf_ptr', address), value)})")
