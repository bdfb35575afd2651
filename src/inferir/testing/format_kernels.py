"""Weight files of a format, and the kernels of backends that multiply with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.codegen.backend import Backend, Context
from inferir.codegen.backends import BACKENDS
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import refusal
from inferir.codegen.weights import packing
from inferir.ir.contract.bucket import Bucket
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, from_torch, torch_dtype
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType
from inferir.ir.system.held_folder import scratch_folder
from inferir.ir.weight_format import WeightFormat
from inferir.testing.contexts import context_for, target_of
from inferir.testing.failures import failed
from inferir.testing.format_weights import bits_of, options_for, random_matrix
from inferir.testing.kernel_runs import RegionRun, runner_for

if TYPE_CHECKING:
    import torch

BOUND = 2e-6
"""Of a product, relative to the sum of the sizes of its terms: a float32 sum."""


def check_files(format: WeightFormat, weight: torch.Tensor) -> None:
    """Weight files hold what the transforms give."""
    import torch
    from safetensors.torch import load_file

    b = Builder()
    values = format.transform(b, b.weight("w", TensorType(tuple(weight.shape), from_torch(weight.dtype))))
    transforms = {role: Graph((), (value,), ("value",), role) for role, value in zip(format.roles, values, strict=True)}
    types = {role: value.type for role, value in zip(format.roles, values, strict=True)}
    with scratch_folder("format") as folder:
        path = folder.path / f"{format.name}.safetensors"
        store = packing.WeightCache(CompileCache(None), "checkpoint", from_torch(weight.dtype))
        packing.write_weights(path, types, transforms, {"w": weight}.__getitem__, store)
        loaded = load_file(path)
    for role, tensor in zip(format.roles, format.pack(weight, Attrs(format.defaults)), strict=True):
        if not torch.equal(bits_of(loaded[role]), bits_of(tensor)):
            raise failed(f"{format.name}: a weight file holds other {role} than pack makes")


def check_kernels(
    format: WeightFormat, dtypes: Sequence[DType], widths: Sequence[int], backends: Sequence[str] | None = None
) -> dict[str, str]:
    """Compare products of kernels with those in float64; by backend, how many, or why there are none.

    Weights have less than a block of outputs, more than two, and interleaved halves that do not fill one.
    """
    out = {}
    for kind in backends or BACKENDS.names():
        context, backend = context_for(kind, Bucket(1, 17)), BACKENDS.get(kind)
        run = runner_for(backend, context)
        if run is None:
            out[kind] = f"this machine cannot run {target_of(kind).name}"
            continue
        shapes = ((1, widths[0], 1), (130, widths[-1], 1), (168, widths[0], 2))
        cases = [_case(format, n, k, d, p) for d in dtypes for n, k, p in shapes]
        known = [c for c in cases if c is not None and _refused(backend, c, context) is None]
        if not known:
            first = next((c for c in cases if c is not None), None)
            out[kind] = (
                (_refused(backend, first, context) or "") if first is not None else "it holds none of the shapes"
            )
            continue
        for case, (got,) in zip(known, run(backend, context, known), strict=True):
            _compare(format, kind, case, got)
        out[kind] = f"{len(known)} products"
    return out


def _refused(backend: Backend, case: RegionRun, context: Context) -> str | None:
    return refusal(backend, case.region, context)


def _case(format: WeightFormat, n: int, k: int, dtype: DType, parts: int) -> RegionRun | None:
    """A product of 5 rows; of interleaved parts the larger, which is what they are interleaved for."""
    import torch

    weight = random_matrix(n, k, dtype)
    options = options_for(format, weight, parts)
    if options is None:
        return None
    stored = format.pack(weight, Attrs(options))
    b = Builder()
    inputs = [b.input("x", TensorType((T, k), dtype))]
    inputs += [
        b.input(role, TensorType(tuple(t.shape), from_torch(t.dtype)))
        for role, t in zip(format.roles, stored, strict=True)
    ]
    y = b.op("tensor.linear_packed", *inputs, n=n, format=format.name, interleave=parts, dtype=DType.F32)
    if parts > 1:
        size = n // parts
        halves = [b.op("tensor.slice", y, dim=1, start=i * size, stop=(i + 1) * size) for i in range(parts)]
        y = halves[0]
        for other in halves[1:]:
            y = b.op("tensor.maximum", y, other)
    region: Node = b.node(
        "kernel.region", inputs, {"anchor": "matmul", "body": Graph(tuple(inputs), (y,)), "name": "linear"}
    )
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(n)).to(torch_dtype(dtype))
    return RegionRun(region, [x, *stored])


def _compare(format: WeightFormat, kind: str, case: RegionRun, got: torch.Tensor) -> None:
    """With the product in float64 of the weight that the stored tensors stand for."""
    (product,) = (n for n in case.body.nodes if n.op == "tensor.linear_packed")
    parts, n = product.attrs["interleave"], product.attrs["n"]
    x, weight = case.operands[0].double(), format.unpack(case.operands[1:], n, parts).double()
    want, most = x @ weight.T, x.abs() @ weight.abs().T
    if parts > 1:
        want, most = (t.view(len(x), parts, -1).amax(1) for t in (want, most))
    off = (got.double() - want).abs()
    if not bool((off <= BOUND * most).all()):
        row, column = divmod(int((off - BOUND * most).nan_to_num(float("inf")).argmax()), want.shape[1])
        raise failed(
            f"{format.name}: the kernel of backend {kind} is off by {off[row, column].item():.3g} in row {row}, column "
            f"{column}: {got[row, column].item()!r} instead of {want[row, column].item()!r}",
            [("region", case.body), ("options", f"interleave={parts}")],
            case.body,
        )
