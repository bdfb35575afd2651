"""Pointers, prefetches, atomics, futexes and indirect calls as LLVM functions (x86-64 Linux).

System calls are inline assembly, so a bucket module needs no symbol from outside.
"""

from __future__ import annotations

_SYSCALL = '"={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"'
_FUTEX, _SCHED_YIELD, _NANOSLEEP = 202, 24, 35
NAP_NANOSECONDS = 2_000_000
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_TIR_TYPES = {"ptr": "handle", "i64": "int64", "i32": "int32"}

SYNC: dict[str, tuple[str, str, str]] = {}
"""By name: TIR result type, needed declaration or "", text."""


def _function(result: str, name: str, params: str, *lines: str, declares: str = "") -> None:
    """Add a function that returns %r if one of its lines computes that, else 0."""
    value = "%r" if any(line.startswith("%r = ") for line in lines) else "0"
    body = "\n".join(f"  {line}" for line in (*lines, f"ret {result} {value}"))
    text = f"define {result} @{name}({params}) alwaysinline nounwind {{\n{body}\n}}"
    SYNC[name] = (_TIR_TYPES[result], declares, text)


def _syscall(number: int, *args: str) -> str:
    values = [f"i64 {number}", *args, *["i64 0"] * (6 - len(args))]
    return f'%status = call i64 asm sideeffect "syscall", {_SYSCALL}({", ".join(values)})'


_function("ptr", "inf_ptr", "i64 %a", "%r = inttoptr i64 %a to ptr")
_function("i64", "inf_addr", "ptr %p", "%r = ptrtoint ptr %p to i64")
_function(
    "i64",
    "inf_dispatch_address",
    "",
    "%r = ptrtoint ptr @inferir_dispatch to i64",
    declares="declare i32 @inferir_dispatch(ptr, i32, i32, ptr, ptr)",
)
_function(
    "i32",
    "inf_call",
    "i64 %f, ptr %row, i32 %first, i32 %tasks, ptr %counts, ptr %scratch",
    "%p = inttoptr i64 %f to ptr",
    "%r = call i32 %p(ptr %row, i32 %first, i32 %tasks, ptr %counts, ptr %scratch)",
)

_CYCLES = "declare i64 @llvm.readcyclecounter()"
_function("i64", "inf_cycles", "", "%r = call i64 @llvm.readcyclecounter()", declares=_CYCLES)
_function(
    "i32",
    "inf_stamp",
    "i64 %a, i32 %i",
    "%p = inttoptr i64 %a to ptr",
    "%n = sext i32 %i to i64",
    "%q = getelementptr i64, ptr %p, i64 %n",
    "%t = call i64 @llvm.readcyclecounter()",
    "store i64 %t, ptr %q, align 8",
    declares=_CYCLES,
)

for _kind, _align in (("i32", 4), ("i64", 8)):
    _pair = f"ptr %p, {_kind} %v"
    _function(_kind, f"inf_load_{_kind}", "ptr %p", f"%r = load atomic {_kind}, ptr %p seq_cst, align {_align}")
    _function("i32", f"inf_store_{_kind}", _pair, f"store atomic {_kind} %v, ptr %p seq_cst, align {_align}")
    _function(_kind, f"inf_add_{_kind}", _pair, f"%r = atomicrmw add ptr %p, {_kind} %v seq_cst")
_function(
    "i32",
    "inf_cas_i64",
    "ptr %p, i64 %old, i64 %new",
    "%c = cmpxchg ptr %p, i64 %old, i64 %new seq_cst monotonic",
    "%ok = extractvalue { i64, i1 } %c, 1",
    "%r = zext i1 %ok to i32",
)
# For memory of one thread.
_function("i32", "inf_put_i64", "ptr %p, i64 %v", "store i64 %v, ptr %p, align 8")
_function("i64", "inf_get_i64", "ptr %p", "%r = load i64, ptr %p, align 8")
# Loads stay on their side of it: nothing for the processor, an order for the compiler.
_function("i32", "inf_in_order", "", 'call void asm sideeffect "", "~{memory}"()')

for _name, _how in (("inf_prefetch", "i32 1, i32 3"), ("inf_prefetch_read", "i32 0, i32 2")):
    _fetch = f"call void @llvm.prefetch.p0(ptr %p, {_how}, i32 1)"
    _function("i32", _name, "ptr %p", _fetch, declares="declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")

_PAUSE = "void @llvm.x86.sse2.pause()"
_function("i32", "inf_pause", "", f"call {_PAUSE}", declares=f"declare {_PAUSE}")
_function("i32", "inf_yield", "", _syscall(_SCHED_YIELD))
_function(
    "i32",
    "inf_nap",
    "",
    "%t = alloca [2 x i64], align 8",
    "store i64 0, ptr %t, align 8",
    "%n = getelementptr i64, ptr %t, i64 1",
    f"store i64 {NAP_NANOSECONDS}, ptr %n, align 8",
    "%a = ptrtoint ptr %t to i64",
    _syscall(_NANOSLEEP, "i64 %a"),
)
for _name, _command in (("inf_futex_wait", _WAIT_PRIVATE), ("inf_futex_wake", _WAKE_PRIVATE)):
    _run = _syscall(_FUTEX, "i64 %a", f"i64 {_command}", "i64 %w")
    _function("i32", _name, "ptr %p, i32 %v", "%a = ptrtoint ptr %p to i64", "%w = zext i32 %v to i64", _run)
