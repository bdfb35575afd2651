"""Kernels that only stream or only multiply: nothing that moves or multiplies data can be faster."""

from __future__ import annotations

from inferir.codegen.limit_probes import STREAM_OUT, LimitModule
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, row_words, scratch_bytes
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Param, TaskKernel, Writer, entry_head
from inferir.ir.contract.target import Target
from inferir.ir.graph.dtypes import DType

TASK_BYTES = 128 * 1024  # that a streaming task reads; they fit the second-level cache
DOT_STEPS = 20_000
_LANES = 16


class LimitKernels:
    """Their modules for CPUs."""

    def module(self, dtype: DType, target: Target) -> LimitModule:
        accumulators = 24 if target.vector_bits >= 512 else 6  # as many as fit the registers beside the operand
        kernels = [_stream(), _dots(dtype, accumulators)]
        pair = 2 if dtype is DType.BF16 else 1
        return LimitModule(
            source=bucket_module_source(kernels, timed_workers=True),
            task_bytes=TASK_BYTES,
            task_flops=2 * _LANES * pair * accumulators * DOT_STEPS,
            out_bytes=4 * _LANES * accumulators,
            row_words=row_words(kernels),
            scratch_bytes=scratch_bytes(kernels),
        )


def _stream() -> TaskKernel:
    """Reads `TASK_BYTES` bytes n_s times and keeps their sum, in 16 lanes and 4 accumulators."""
    w = Writer()
    params = (Param("x", "int32"), Param("out", "int32"))
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head("stream", params)):
        w.line('X = T.decl_buffer((1,), "int32", data=x)')
        w.line('OUT = T.decl_buffer((1,), "int32", data=out)')
        w.line(f'a = T.alloc_buffer((4, {_LANES}), "int32", annotations={{"disable_lower_builtin": True}})')
        with w.block("for i in T.unroll(4):"):
            w.line(f"a[i, T.ramp(0, 1, {_LANES})] = T.broadcast(T.int32(0), {_LANES})")
        words = TASK_BYTES // 4
        sweep = w.block(f"for k in range({words // 64}):")
        with w.block("for repeat in range(n_s):"), sweep, w.block("for i in T.unroll(4):"):
            at = f"T.cast(task, 'int64') * {words} + T.cast(k * 64 + i * {_LANES}, 'int64')"
            lanes = f"a[i, T.ramp(0, 1, {_LANES})]"
            w.line(f"{lanes} = {lanes} + X[T.ramp({at}, T.int64(1), {_LANES})]")
        with w.block("for i in T.unroll(4):"):
            w.line(f"OUT[T.ramp(task * {STREAM_OUT // 4} + i * {_LANES}, 1, {_LANES})] = a[i, T.ramp(0, 1, {_LANES})]")
        w.line("return T.int32(0)")
    return TaskKernel("stream", params, w.text(), "n_t")


def _dots(dtype: DType, accumulators: int) -> TaskKernel:
    """`DOT_STEPS` times `accumulators` vector products on registers."""
    w = Writer()
    of_pairs = dtype is DType.BF16
    kind = "int32" if of_pairs else "float32"
    params = (Param("x", kind), Param("out", "float32"))
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head("dots", params)):
        w.line(f'X = T.decl_buffer((1,), "{kind}", data=x)')
        w.line('OUT = T.decl_buffer((1,), "float32", data=out)')
        shape = f"({accumulators}, {_LANES})"
        w.line(f'a = T.alloc_buffer({shape}, "float32", annotations={{"disable_lower_builtin": True}})')
        lane = f"T.ramp(0, 1, {_LANES})"
        with w.block(f"for i in T.unroll({accumulators}):"):
            w.line(f"a[i, {lane}] = T.broadcast(T.float32(0), {_LANES})")
        w.line(f"v: T.let = X[{lane}]")
        with w.block(f"for k in range({DOT_STEPS}):"), w.block(f"for i in T.unroll({accumulators}):"):
            acc = f"a[i, {lane}]"
            product = (
                call("inf_dot_bf16", _LANES, acc, "v", "v") if of_pairs else call("inf_fma", _LANES, "v", "v", acc)
            )
            w.line(f"{acc} = {product}")
        with w.block(f"for i in T.unroll({accumulators}):"):
            w.line(f"OUT[T.ramp(task * {_LANES * accumulators} + i * {_LANES}, 1, {_LANES})] = a[i, {lane}]")
        w.line("return T.int32(0)")
    return TaskKernel("dots", params, w.text(), "n_t")
