"""Numerics without a GPU: runs generated kernels in Triton's interpreter, in a process of its own.

    results = run_interpreted([Run(kernel, grid=(T, 1), tensors=[...])])

An access out of bounds is a fault of the process that makes it, hence the child process. Triton's interpreter truncates
when it rounds to bf16, computes with the bits of bf16 as if they were integers, and has no libdevice. `repair` mends
what generated kernels use: conversions round to nearest even, libdevice functions are evaluated in float64 and rounded
once, and arithmetic on half-precision values, which generated kernels do not contain, is refused. It is written for the
Triton versions in `TESTED` and refuses others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferir.codegen.triton.compile_kernel import load_function
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.errors import CodegenError
from inferir.ir.system.child import child_environment, die_with_parent
from inferir.ir.system.held_folder import scratch_folder

if TYPE_CHECKING:
    import torch

TESTED = ("3.7.1",)
_FUNCTIONS = ("exp", "log", "log1p", "sin", "cos", "tanh", "erf")


@dataclass(frozen=True)
class Run:
    """One launch; `tensors` are what the kernel's parameters point to, results included, in the order of `params`."""

    kernel: KernelSource
    grid: tuple[int, ...]
    tensors: Sequence[torch.Tensor]


def run_interpreted(runs: Sequence[Run], timeout: float = 300.0) -> list[list[torch.Tensor]]:
    """The tensors of every run as the kernel leaves them; the given ones are not changed.

    Raises `CodegenError` with the child's last words if a kernel fails or the child dies.
    """
    from safetensors.torch import load_file, save_file

    with scratch_folder("triton") as scratch:
        folder = scratch.path
        jobs, tensors = [], {}
        for i, run in enumerate(runs):
            module = f"module{i}.py"
            (folder / module).write_text(run.kernel.source, encoding="utf-8")
            jobs.append({"module": module, "name": run.kernel.name, "grid": run.grid, "count": len(run.tensors)})
            tensors.update({f"{i}.{k}": t.clone().contiguous() for k, t in enumerate(run.tensors)})
        (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        save_file(tensors, folder / "tensors.safetensors")
        command = [sys.executable, "-P", __file__, str(folder)]
        environment = {**child_environment(), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise CodegenError(f"interpreter (exit status {done.returncode}): {lines[-1] if lines else 'no message'}")
        out = load_file(folder / "tensors.safetensors")
    return [[out[f"{i}.{k}"] for k in range(len(run.tensors))] for i, run in enumerate(runs)]


def repair() -> None:
    """Mend the interpreter of this process. Raises `CodegenError` for a version of Triton this was not tested with."""
    import triton

    if triton.__version__ not in TESTED:
        raise CodegenError(
            f"the interpreter repair was tested with Triton {', '.join(TESTED)}, not {triton.__version__}; "
            "check it with the tests of codegen/triton and add the version"
        )
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    handle, builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
    stock_cast, stock_binary, stock_select = builder.cast_impl, builder.binary_op, builder.ternary_op
    halves = {tl.bfloat16: torch.bfloat16, tl.float16: torch.float16}

    def bits(data: Any, kind: torch.dtype) -> torch.Tensor:
        """Stored half-precision data as a torch tensor."""
        as_int = torch.from_numpy(data.copy().view("int16"))
        return as_int.view(kind)

    def cast(self: Any, source: Any, target: Any) -> Any:
        a, b = source.dtype.scalar, target.scalar
        if a not in halves and b not in halves:
            return stock_cast(self, source, target)
        data = bits(source.data, halves[a]) if a in halves else torch.from_numpy(source.data.copy())
        if b not in halves:
            wide = data.to(torch.float64).numpy()
            return handle(wide.astype(interpreter._get_np_dtype(b)), b)
        stored = data.to(halves[b]).view(torch.int16).numpy()
        return handle(stored.view(interpreter._get_np_dtype(b)), b)

    def binary(self: Any, left: Any, right: Any, op: Any) -> Any:
        if left.dtype.scalar in halves or right.dtype.scalar in halves:
            raise NotImplementedError(f"{op.__name__} on half-precision values; convert them to float32 first")
        return stock_binary(self, left, right, op)

    def ternary(self: Any, a: Any, b: Any, c: Any, op: Any) -> Any:
        if c.dtype.scalar in halves and op.__name__ != "where":
            raise NotImplementedError(f"{op.__name__} on half-precision values; convert them to float32 first")
        return stock_select(self, a, b, c, op)

    def function(name: str) -> Any:
        compute = getattr(torch, name)

        def call(x: Any, _semantic: Any = None) -> Any:
            exact = compute(torch.from_numpy(x.handle.data.copy()).to(torch.float64))
            return tl.core.tensor(handle(exact.to(torch.float32).numpy(), x.dtype), x.type)

        return call

    def power(x: Any, y: Any, _semantic: Any = None) -> Any:
        base = torch.from_numpy(x.handle.data.copy()) if isinstance(x, tl.core.tensor) else torch.tensor(float(x))
        exponent = torch.from_numpy(y.handle.data.copy()) if isinstance(y, tl.core.tensor) else torch.tensor(float(y))
        like = x if isinstance(x, tl.core.tensor) else y
        exact = torch.pow(base.to(torch.float64), exponent.to(torch.float64)).to(torch.float32).numpy()
        return tl.core.tensor(handle(exact, like.dtype), like.type)

    builder.cast_impl, builder.binary_op, builder.ternary_op = cast, binary, ternary
    builder.create_fp_to_fp = lambda self, source, target, rounding: cast(self, source, target)
    for name in _FUNCTIONS:
        setattr(libdevice, name, function(name))
    libdevice.pow = power


def main(folder: Path) -> None:
    """Run the jobs in `folder` and write the tensors back."""
    from safetensors.torch import load_file, save_file

    repair()
    tensors = load_file(folder / "tensors.safetensors")
    for i, job in enumerate(json.loads((folder / "jobs.json").read_text(encoding="utf-8"))):
        fn = load_function(folder / job["module"], job["name"])
        fn[tuple(job["grid"])](*(tensors[f"{i}.{k}"] for k in range(job["count"])))
    save_file(tensors, folder / "tensors.safetensors")


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]))
