"""Module text to shared object: parse, lower with a short list of TVM passes, generate code with LLVM, link.

The default TVM pipeline is not used: kernels are written in the form the code generator takes (explicit vectors,
unrolled register tiles), so scheduling and storage passes would only cost time, and its calling convention needs the
TVM runtime.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from inferir.codegen.tvm.llvm_lib import library
from inferir.codegen.tvm.source import helper_names
from inferir.ir.errors import CodegenError
from inferir.ir.target import Target

LIBRARY_VARIABLE = "LLVM_LIBRARY"
"""Name under which module text finds the LLVM helper text, for its one `pragma_import_llvm` attribute."""

# TVM tells LLVM that memory reached through two different parameters never overlaps. Kernels pass scratch memory from
# one private function to the next, which is wrong then as soon as LLVM inlines both: type-based alias analysis is
# switched off. What really is disjoint is said with `tirx.noalias` on the function that reads it.
_NO_TBAA = "-enable-tbaa:bool=false"
_PLACE = re.compile(r"--> <str>:(\d+):")


def _lower(mod: Any, target: Any) -> Any:
    from tvm import s_tir, tirx

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


def compile_object(source: str, target: Target) -> Any:
    """Compile module text to a TVM LLVM module (object code not yet linked). Raises `CodegenError`."""
    import tvm
    import tvm.script
    from tvm.script import ir, tirx

    text = library(helper_names(source), frozenset(target.features))
    try:
        mod = tvm.script.from_source(source, {"I": ir, "T": tirx, LIBRARY_VARIABLE: text})
        llvm = tvm.target.Target(
            {
                "kind": "llvm",
                "mcpu": target.mcpu,
                "mattr": [f"+{f}" for f in target.features],
                "cl-opt": [_NO_TBAA],
            }
        )
        return tvm.get_global_func("target.build.llvm")(_lower(mod, llvm), llvm)
    except Exception as error:
        raise CodegenError(f"TVM refused the module: {_reason(error, source)}") from error


def _reason(error: Exception, source: str) -> str:
    """One line for an exception of the parser or code generator; for a parse error with the line it points at."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    place = next((m for m in map(_PLACE.search, lines) if m), None)
    if place is None:
        return lines[0]
    return f"{lines[0]} in line {place[1]}: {source.splitlines()[int(place[1]) - 1].strip()}"


def build_module(source: str, target: Target) -> bytes:
    """Build module text into the bytes of a shared object with plain C symbols."""
    module = compile_object(source, target)
    with tempfile.TemporaryDirectory(prefix="inferir-build-") as folder:
        obj, out = Path(folder) / "module.o", Path(folder) / "module.so"
        module.write_to_file(str(obj))
        linker = shutil.which("ld.lld") or shutil.which("ld")
        if linker is None:
            raise CodegenError("no linker found: install binutils (ld) or lld")
        options = ("-shared", "-s", "-Bsymbolic", "--build-id=none", "-z", "noexecstack")
        done = subprocess.run([linker, *options, "-o", out, obj], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CodegenError(f"linking failed: {done.stderr.strip()}")
        return out.read_bytes()
