"""Pointers, prefetches, atomics, futexes and indirect calls as LLVM functions (x86-64 Linux).

System calls are inline assembly, so a bucket module needs no symbol from outside.
"""

from __future__ import annotations

_SYSCALL = '"={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"'
_FUTEX, _SCHED_YIELD, _NANOSLEEP = 202, 24, 35
NAP_NANOSECONDS = 2_000_000
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def _syscall(number: int, *args: str) -> str:
    values = [f"i64 {number}", *args, *["i64 0"] * (6 - len(args))]
    return f'call i64 asm sideeffect "syscall", {_SYSCALL}({", ".join(values)})'


def _function(result: str, name: str, params: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"define {result} @{name}({params}) alwaysinline nounwind {{\n{body}\n}}"


def _futex(name: str, command: int) -> str:
    call = _syscall(_FUTEX, "i64 %a", f"i64 {command}", "i64 %w")
    lines = ("%a = ptrtoint ptr %p to i64", "%w = zext i32 %v to i64", f"%r = {call}", "ret i32 0")
    return _function("i32", name, "ptr %p, i32 %v", *lines)


SYNC: dict[str, tuple[str, str, str]] = {
    # name: (TIR result type, needed declaration or "", text)
    "inf_ptr": ("handle", "", _function("ptr", "inf_ptr", "i64 %a", "%r = inttoptr i64 %a to ptr", "ret ptr %r")),
    "inf_addr": ("int64", "", _function("i64", "inf_addr", "ptr %p", "%r = ptrtoint ptr %p to i64", "ret i64 %r")),
    "inf_dispatch_address": (
        "int64",
        "declare i32 @inferir_dispatch(ptr, i32, i32, ptr, ptr)",
        _function("i64", "inf_dispatch_address", "", "%r = ptrtoint ptr @inferir_dispatch to i64", "ret i64 %r"),
    ),
    "inf_stamp": (
        "int32",
        "declare i64 @llvm.readcyclecounter()",
        _function(
            "i32",
            "inf_stamp",
            "i64 %a, i32 %i",
            "%p = inttoptr i64 %a to ptr",
            "%n = sext i32 %i to i64",
            "%q = getelementptr i64, ptr %p, i64 %n",
            "%t = call i64 @llvm.readcyclecounter()",
            "store i64 %t, ptr %q, align 8",
            "ret i32 0",
        ),
    ),
    "inf_cycles": (
        "int64",
        "declare i64 @llvm.readcyclecounter()",
        _function("i64", "inf_cycles", "", "%r = call i64 @llvm.readcyclecounter()", "ret i64 %r"),
    ),
    "inf_in_order": (  # loads stay on their side of it: nothing for the processor, an order for the compiler
        "int32",
        "",
        _function("i32", "inf_in_order", "", 'call void asm sideeffect "", "~{memory}"()', "ret i32 0"),
    ),
    "inf_load_i32": (
        "int32",
        "",
        _function("i32", "inf_load_i32", "ptr %p", "%r = load atomic i32, ptr %p seq_cst, align 4", "ret i32 %r"),
    ),
    "inf_store_i32": (
        "int32",
        "",
        _function(
            "i32", "inf_store_i32", "ptr %p, i32 %v", "store atomic i32 %v, ptr %p seq_cst, align 4", "ret i32 0"
        ),
    ),
    "inf_add_i32": (
        "int32",
        "",
        _function("i32", "inf_add_i32", "ptr %p, i32 %v", "%r = atomicrmw add ptr %p, i32 %v seq_cst", "ret i32 %r"),
    ),
    "inf_load_i64": (
        "int64",
        "",
        _function("i64", "inf_load_i64", "ptr %p", "%r = load atomic i64, ptr %p seq_cst, align 8", "ret i64 %r"),
    ),
    "inf_store_i64": (
        "int32",
        "",
        _function(
            "i32", "inf_store_i64", "ptr %p, i64 %v", "store atomic i64 %v, ptr %p seq_cst, align 8", "ret i32 0"
        ),
    ),
    "inf_put_i64": (  # for memory of one thread
        "int32",
        "",
        _function("i32", "inf_put_i64", "ptr %p, i64 %v", "store i64 %v, ptr %p, align 8", "ret i32 0"),
    ),
    "inf_get_i64": (
        "int64",
        "",
        _function("i64", "inf_get_i64", "ptr %p", "%r = load i64, ptr %p, align 8", "ret i64 %r"),
    ),
    "inf_add_i64": (
        "int64",
        "",
        _function("i64", "inf_add_i64", "ptr %p, i64 %v", "%r = atomicrmw add ptr %p, i64 %v seq_cst", "ret i64 %r"),
    ),
    "inf_cas_i64": (
        "int32",
        "",
        _function(
            "i32",
            "inf_cas_i64",
            "ptr %p, i64 %old, i64 %new",
            "%c = cmpxchg ptr %p, i64 %old, i64 %new seq_cst monotonic",
            "%ok = extractvalue { i64, i1 } %c, 1",
            "%r = zext i1 %ok to i32",
            "ret i32 %r",
        ),
    ),
    "inf_prefetch": (
        "int32",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        _function(
            "i32", "inf_prefetch", "ptr %p", "call void @llvm.prefetch.p0(ptr %p, i32 1, i32 3, i32 1)", "ret i32 0"
        ),
    ),
    "inf_prefetch_read": (
        "int32",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        _function(
            "i32",
            "inf_prefetch_read",
            "ptr %p",
            "call void @llvm.prefetch.p0(ptr %p, i32 0, i32 2, i32 1)",
            "ret i32 0",
        ),
    ),
    "inf_pause": (
        "int32",
        "declare void @llvm.x86.sse2.pause()",
        _function("i32", "inf_pause", "", "call void @llvm.x86.sse2.pause()", "ret i32 0"),
    ),
    "inf_yield": ("int32", "", _function("i32", "inf_yield", "", f"%r = {_syscall(_SCHED_YIELD)}", "ret i32 0")),
    "inf_nap": (
        "int32",
        "",
        _function(
            "i32",
            "inf_nap",
            "",
            "%t = alloca [2 x i64], align 8",
            "store i64 0, ptr %t, align 8",
            "%n = getelementptr i64, ptr %t, i64 1",
            f"store i64 {NAP_NANOSECONDS}, ptr %n, align 8",
            "%a = ptrtoint ptr %t to i64",
            f"%r = {_syscall(_NANOSLEEP, 'i64 %a')}",
            "ret i32 0",
        ),
    ),
    "inf_futex_wait": ("int32", "", _futex("inf_futex_wait", _WAIT_PRIVATE)),
    "inf_futex_wake": ("int32", "", _futex("inf_futex_wake", _WAKE_PRIVATE)),
    "inf_call": (
        "int32",
        "",
        _function(
            "i32",
            "inf_call",
            "i64 %f, ptr %row, i32 %first, i32 %chunks, ptr %counts, ptr %scratch",
            "%p = inttoptr i64 %f to ptr",
            "%r = call i32 %p(ptr %row, i32 %first, i32 %chunks, ptr %counts, ptr %scratch)",
            "ret i32 %r",
        ),
    ),
}
