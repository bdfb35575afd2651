"""The runtime serves without any compiler or model library."""

import subprocess
import sys

HEAVY = ("torch", "tvm", "tvm_ffi", "triton", "transformers", "sympy", "networkx")

PROGRAM = f"""
import importlib, pkgutil, sys
import inferir.runtime
for module in pkgutil.walk_packages(inferir.runtime.__path__, "inferir.runtime."):
    importlib.import_module(module.name)
import inferir.api.llm
print(*[m for m in {HEAVY!r} if m in sys.modules])
"""


def test_no_compiler_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []
