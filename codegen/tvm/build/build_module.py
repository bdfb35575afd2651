"""Module text to shared object: parse, lower with a short list of TVM passes, generate code with LLVM, link.

The default TVM pipeline is not used: kernels are written in the form the code generator takes (explicit vectors,
unrolled register tiles), so scheduling and storage passes would only cost time, and its calling convention needs the
TVM runtime.

The same text and target give the same bytes: nothing of the machine, the time or a path gets into the file. Exported
are the C functions whose names start with `inferir_`.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx

from inferir.codegen.linker import find_linker
from inferir.codegen.tvm.build.parse_module import parse_module
from inferir.codegen.tvm.llvm.llvm_lib import library
from inferir.codegen.tvm.source import helper_names
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.system.child import before_exec
from inferir.ir.system.held_folder import HeldFolder, scratch_folder

LIBRARY_VARIABLE = "LLVM_LIBRARY"
"""Name under which module text finds the LLVM helper text, for its one `pragma_import_llvm` attribute."""

# TVM tells LLVM that memory reached through two different parameters never overlaps. Kernels pass scratch memory from
# one private function to the next, which is wrong then as soon as LLVM inlines both: type-based alias analysis is
# switched off. What really is disjoint is said with `tirx.noalias` on the function that reads it.
_NO_TBAA = "-enable-tbaa:bool=false"
_PLACE = re.compile(r"--> <str>:(\d+):")
_DEF = re.compile(r"\s*def (\w+)\(")
_LINK = ("-shared", "-s", "-Bsymbolic", "--gc-sections", "--build-id=none", "-z", "noexecstack")
_EXPORTS = "{ global: inferir_*; local: *; };\n"


def _lower(mod: Any, target: Any) -> Any:
    passes = (
        tirx.transform.BindTarget(target.with_host(target)),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        tirx.transform.LowerTVMBuiltin(),
        tirx.transform.LowerIntrin(),
    )
    for step in passes:
        mod = step(mod)
    return mod


def _llvm_target(target: Target) -> Any:
    attached = [f"+{f}" for f in target.features]
    return tvm.target.Target({"kind": "llvm", "mcpu": target.mcpu, "mattr": attached, "cl-opt": [_NO_TBAA]})


def compile_object(source: str, target: Target) -> Any:
    """Compile module text to a TVM LLVM module: object code, not yet linked.

    Raises `CodegenError` that names the function at fault where the parser tells it.
    """
    text = library(helper_names(source), frozenset(target.features))
    try:
        llvm = _llvm_target(target)
        return tvm.get_global_func("target.build.llvm")(
            _lower(parse_module(source, {LIBRARY_VARIABLE: text}), llvm), llvm
        )
    except Exception as error:
        raise CodegenError(f"TVM refused the module: {_reason(error, source)}") from error


def _reason(error: Exception, source: str) -> str:
    """One line for an exception of the parser or code generator; for a parse error with function and line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    place = next((m for m in map(_PLACE.search, lines) if m), None)
    if place is None:
        return lines[0]
    before = source.splitlines()[: int(place[1])]
    function = next((m[1] for m in map(_DEF.match, reversed(before)) if m), "the module")
    return f"{lines[0]} in {function}, line {place[1]}: {before[-1].strip()}"


def build_module(source: str, target: Target) -> bytes:
    """Build module text into the bytes of a shared object with plain C symbols. Raises `CodegenError`."""
    module = compile_object(source, target)
    try:
        with scratch_folder("build") as folder:
            return _link(module, folder)
    except OSError as error:
        where = tempfile.gettempdir()
        raise CodegenError(f"no temporary files can be written in {where}: {error.strerror or error}") from None


def _link(module: Any, folder: HeldFolder) -> bytes:
    """Write object code and link it. The folder is reached by its descriptor: what comes out is what went in."""
    obj, out, exports = (f"{folder.address}/{name}" for name in ("module.o", "module.so", "exports"))
    module.write_to_file(obj)
    Path(exports).write_text(_EXPORTS)
    command = [_linker(), *_LINK, f"--version-script={exports}", "-o", out, obj]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=(folder.descriptor,),
        preexec_fn=before_exec(),
    )
    if done.returncode:
        raise CodegenError(f"linking failed: {done.stderr.strip()}")
    return Path(out).read_bytes()


def _linker() -> str:
    found = find_linker()
    if found is not None:
        return found
    raise CodegenError("no linker found: install binutils (ld) or LLVM's lld")
