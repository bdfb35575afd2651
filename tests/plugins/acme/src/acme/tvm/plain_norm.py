"""A kernel for root-mean-square norms of float32 rows, in the place of the generated one: plain loops over a row."""

from __future__ import annotations

from dataclasses import replace

from inferir.codegen.backend import Context
from inferir.codegen.overrides import KernelOverride
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import TaskKernel, Writer, entry
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node


def _matches(region: Node, context: Context) -> bool:
    """A region that is one norm of rows along T, with operands and result in float32."""
    body: Graph = region.attrs["body"]
    norms = [node for node in body.nodes if node.op != "core.input"]
    return (
        [node.op for node in norms] == ["nn.rms_norm"]
        and norms[0].operands == body.inputs
        and all(str(v.type.shape[0]) == "T" for v in body.outputs)
        and all(v.type.dtype is DType.F32 for v in (*body.inputs, *body.outputs))
    )


def _rewrite(kernel: TaskKernel, region: Node, context: Context) -> TaskKernel:
    (norm,) = (node for node in region.attrs["body"].nodes if node.op == "nn.rms_norm")
    width, attrs = norm.types[0].shape[-1], norm.attrs
    x, w, y = (param.name for param in kernel.params)
    out = Writer()
    with entry(out, kernel.name, kernel.params, {"X": x, "W": w, "Y": y}, noalias=True):
        out.line('total = T.alloc_buffer((1,), "float32")')
        out.line("total[0] = T.float32(0)")
        with out.block(f"for i in range({width}):"):
            out.line(f"total[0] = total[0] + X[task * {width} + i] * X[task * {width} + i]")
        out.line(f"mean: T.let = total[0] / T.float32({width}) + T.float32({attrs['eps']!r})")
        out.line(f"scale: T.let = T.float32(1) / {call('inf_sqrt', 1, 'mean')}")
        with out.block(f"for i in range({width}):"):
            gain = f"(W[i] + T.float32({attrs['offset']!r}))"
            out.line(f"Y[task * {width} + i] = X[task * {width} + i] * scale * {gain}")
    return replace(kernel, source=out.text(), tasks="n_t")  # a task is a row


OVERRIDE = KernelOverride("tvm", _matches, _rewrite, targets=("cpu",))
