"""The LLVM helper functions that kernels call, as text for one target, and the TIR expressions that call them.

Vector helpers exist for 1, 2, 4, 8 and 16 lanes under the name `inf_<what>_<lanes>`; `call("inf_exp", 16, x)` writes
the TIR call. `library(names, features)` returns the module text of exactly the helpers named and what they need; it is
linked into a module once, through the `pragma_import_llvm` attribute, and everything in it is inlined.

`features` are LLVM feature names. Used: `avx512bf16` (native dot product and rounding; without it shifts and fused
multiply-adds).
"""

from __future__ import annotations

from collections.abc import Iterable

from inferir.codegen.tvm.llvm import llvm_convert, llvm_math
from inferir.codegen.tvm.llvm.llvm_body import HELPERS, LANES, define
from inferir.codegen.tvm.llvm.llvm_sync import SYNC
from inferir.codegen.tvm.source import vtype
from inferir.ir.errors import CodegenError

_REGISTERED = (llvm_convert, llvm_math)  # importing them fills HELPERS
_TIR_ELEMENT = {"f": "float32", "F": "float32", "i": "int32", "h": "uint16"}


def call(name: str, lanes: int, *args: str) -> str:
    """The TIR expression that calls vector helper `name` (without the lane suffix) on `lanes` lanes."""
    known = HELPERS[name]
    if len(args) != len(known.args) or lanes not in LANES:
        signature = f"{known.args}->{known.result}"
        raise CodegenError(f"{name}: {len(args)} arguments of {lanes} lanes do not fit its signature {signature}")
    result = vtype(_TIR_ELEMENT[known.result], 1 if known.result == "F" else lanes)
    return f'T.call_pure_extern("{result}", "{name}_{lanes}", {", ".join(args)})'


def sync(name: str, *args: str) -> str:
    """The TIR expression that calls a pointer, prefetch, atomic or system-call helper."""
    result = SYNC[name][0]
    kind = "T.call_pure_extern" if name in ("inf_ptr", "inf_addr", "inf_dispatch_address") else "T.call_extern"
    arguments = ", ".join([f'"{result}"', f'"{name}"', *args])
    return f"{kind}({arguments})"


def library(names: Iterable[str], features: frozenset[str]) -> str:
    """LLVM module text that defines every helper in `names` (with lane suffix) and the helpers those call.

    Raises `CodegenError` for an unknown name. The text is the same for the same set of names.
    """
    done: dict[str, str] = {}
    declares: set[str] = set()
    waiting = sorted(set(names), reverse=True)
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        if name in SYNC:
            _, declaration, done[name] = SYNC[name]
            declares |= {declaration} - {""}
            continue
        base, _, lanes = name.rpartition("_")
        if base not in HELPERS or not lanes.isdigit() or int(lanes) not in LANES:
            raise CodegenError(f"no LLVM helper function is called {name!r}")
        done[name], body = define(base, int(lanes), features)
        declares |= body.declares
        waiting += sorted(body.calls - done.keys(), reverse=True)
    head = ["; ModuleID = 'inferir'", 'source_filename = "inferir"']
    return "\n".join([*head, *sorted(declares), *(done[name] for name in sorted(done))]) + "\n"
