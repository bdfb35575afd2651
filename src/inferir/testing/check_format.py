"""`check_format`: what every weight format must keep to, whoever brings it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, from_torch, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_format import FORMATS, WeightFormat
from inferir.testing.failures import CheckFailedError, failed, require_libraries
from inferir.testing.format_kernels import check_files, check_kernels
from inferir.testing.format_weights import bits_of, extremes, options_for, random_matrix
from inferir.testing.hypothesis_run import smallest_failure

if TYPE_CHECKING:
    import torch

ROWS = (1, 63, 64, 130)
"""Outputs that must be held: less than a block, whole blocks, and more."""
WIDTHS = (32, 96)
"""Inner sizes that must be held."""
DTYPES = (DType.F32, DType.BF16)


@dataclass
class FormatReport:
    """weights: how many were packed; kernels: by backend, how many products kernels computed, or why there are none."""

    name: str
    weights: int = 0
    kernels: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}: {self.weights} weights; " + "; ".join(f"{b}: {k}" for b, k in self.kernels.items())


def check_format(
    format: WeightFormat | str,
    *,
    dtypes: Sequence[DType] = DTYPES,
    widths: Sequence[int] = WIDTHS,
    backends: Sequence[str] | None = None,
    examples: int = 60,
    seed: int = 0,
) -> FormatReport:
    """Pack random and extreme weights of many shapes and types, and compare what comes back with the bounds.

    `types` says what `pack` makes; `unpack` is off by no more than `error` says, the same bits where it says 0; the
    packing op gives the same in the interpreter, and in weight files; the product of `tensor.linear_packed` is that of
    the unpacked weight; a weight that cannot be held is refused with `IRError`, and only those that have a shape or
    type of their own: outputs of any number (`ROWS`) and the inner sizes `widths` must be held, interleaved, too, if
    the format has that option. Kernels that multiply with the format are compared with the product in float64.

    format: a format or the name of a registered one. It must be registered for all but packing and unpacking to be
      checked. dtypes: types of weights that it must hold; widths: inner sizes that it must hold, for instance
      multiples of its groups. backends: by kind of target ("cpu", "cuda"); default all that this machine can run.

    Raises `CheckFailedError` with the smallest weight that was found to fail.
    """
    require_libraries("check_format")
    own = FORMATS.get(format) if isinstance(format, str) else format
    report = FormatReport(own.name)

    def check(example: tuple[torch.Tensor, int]) -> None:
        weight, parts = example
        options = options_for(own, weight, parts)
        if options is not None:
            report.weights += 1
            check_weight(own, weight, options)

    failure = smallest_failure(check, _weights(dtypes, widths), examples, seed)
    if failure is not None:
        raise failure
    _check_refusals(own)
    _check_reach(own, dtypes, widths)
    for dtype in dtypes:
        for name, weight in extremes(dtype, 2 * widths[0]):
            options = options_for(own, weight, 1)
            if options is None:
                raise failed(f"{own.name} does not hold {name}", [("weight", f"{dtype.value}[70, {2 * widths[0]}]")])
            report.weights += 1
            check_weight(own, weight, options)
    if own.name in FORMATS.names() and type(FORMATS.get(own.name)) is type(own):
        for dtype in dtypes:
            check_files(own, random_matrix(130, 2 * widths[0], dtype))
        report.kernels = check_kernels(own, dtypes, widths, backends)
    return report


def _weights(dtypes: Sequence[DType], widths: Sequence[int]) -> Any:
    """A strategy of (weight [n, k], parts that are interleaved)."""
    import torch
    from hypothesis import strategies as st

    kinds = {
        "counting": lambda n, k: torch.arange(n * k).view(n, k) % 251 + 1.0,
        "random": lambda n, k: random_matrix(n, k, DType.F32),
        "with a zero row": lambda n, k: random_matrix(n, k, DType.F32) * (torch.arange(n)[:, None] > 0),
        "tiny and huge rows": lambda n, k: random_matrix(n, k, DType.F32) * torch.exp2(torch.arange(n)[:, None] - 35.0),
    }

    unit = max(1, widths[0] // 2)

    def build(dtype: DType, n: int, width: int, odd: int, kind: str, parts: int) -> tuple[torch.Tensor, int]:
        k = max(1, unit * width - odd)
        return kinds[kind](n, k).to(torch_dtype(dtype)), parts

    return st.builds(
        build,
        st.sampled_from(list(dtypes)),
        st.integers(1, 140),
        st.integers(1, 6),
        st.sampled_from([0, 0, 0, 1, 2, 13, 15]),
        st.sampled_from(list(kinds)),
        st.sampled_from([1, 1, 2]),
    )


def _check_reach(format: WeightFormat, dtypes: Sequence[DType], widths: Sequence[int]) -> None:
    """What must be held is held."""
    for dtype in dtypes:
        for n in ROWS:
            for k in widths:
                if options_for(format, random_matrix(n, k, dtype), 1) is None:
                    raise CheckFailedError(f"{format.name} does not hold {dtype.value}[{n}, {k}]")
    interleaved = any(options_for(format, random_matrix(128, k, d), 2) is not None for d in dtypes for k in widths)
    if "interleave" in format.options and not interleaved:
        raise CheckFailedError(f"{format.name} has the option interleave, but holds no interleaved weight")


def _check_refusals(format: WeightFormat) -> None:
    """What is no matrix of floats, or not a shape that the format has, is refused in words."""
    types = [TensorType(s, d) for s in ((8,), (2, 8, 32), (T, 32), (64, 0)) for d in DTYPES]
    types += [TensorType((64, 32), d) for d in (DType.I32, DType.BOOL, DType.F64, DType.F16)]
    for type_ in types:
        try:
            made = format.types(type_, Attrs(dict(format.defaults)))
        except IRError:
            continue
        except Exception as error:
            raise CheckFailedError(
                f"{format.name} must refuse {type_} with IRError, but raised {type(error).__name__}: {error}"
            ) from error
        if len(made) != len(format.roles):
            raise CheckFailedError(f"{format.name} has {len(format.roles)} roles, but {len(made)} types for {type_}")


def check_weight(format: WeightFormat, weight: torch.Tensor, options: Mapping[str, Any]) -> None:
    """Pack one weight and look at everything that comes of it. Raises `CheckFailedError`."""
    import torch

    def problem(what: str, *more: tuple[str, object]) -> CheckFailedError:
        shown = weight if weight.numel() <= 64 else f"{from_torch(weight.dtype).value}{list(weight.shape)}"
        return failed(f"{format.name} {what}", [("weight", shown), ("options", dict(options)), *more])

    n, k = weight.shape
    declared = format.types(TensorType((n, k), from_torch(weight.dtype)), Attrs(options))
    stored = format.pack(weight, Attrs(options))
    for role, tensor, type_ in zip(format.roles, stored, declared, strict=True):
        if tuple(tensor.shape) != type_.shape or tensor.dtype is not torch_dtype(type_.dtype):
            made = f"{tensor.dtype}{list(tensor.shape)}"
            raise problem(f"says that {role} are {type_}, but packs {made}")
    parts = options.get("interleave", 1)
    back, error = format.unpack(stored, n, parts), format.error(stored, n, parts).expand(n, k)
    if back.shape != (n, k):
        raise problem(f"unpacks {list(back.shape)}")
    exact = error == 0
    off = (back.double() - weight.double()).abs()
    bits = bits_of(torch.where(exact, back, 0)) != bits_of(torch.where(exact, weight.to(back.dtype), 0))
    wrong = bits.view(n, k, -1).any(-1) | ~(exact | (off <= error) | (error == float("inf")))
    if bool(wrong.any()):
        i, j = (int(v) for v in wrong.nonzero()[0])
        raise problem(
            f"unpacks {back[i, j].item()!r} for {weight[i, j].item()!r} in row {i}, column {j}, "
            f"where it allows an error of {error[i, j].item()!r}"
        )
    if format.name in FORMATS.names() and type(FORMATS.get(format.name)) is type(format):
        _check_ops(format, weight, options, stored, problem)


def _check_ops(
    format: WeightFormat, weight: torch.Tensor, options: Mapping[str, Any], stored: Sequence[torch.Tensor], problem: Any
) -> None:
    """The packing op makes what `pack` makes; the product is that of the weight that the stored tensors stand for."""
    import torch

    n, k = weight.shape
    dtype, parts = from_torch(weight.dtype), options.get("interleave", 1)
    b = Builder()
    values = format.transform(b, b.weight("w", TensorType((n, k), dtype)), **options)
    made = list(interpret(Graph((), values, format.roles), {}, {"w": weight}).values())
    for role, tensor, direct in zip(format.roles, made, stored, strict=True):
        if not torch.equal(bits_of(tensor), bits_of(direct)):
            raise problem(f"packs other {role} as an op than by itself")
    b = Builder()
    x = b.input("x", TensorType((T, k), dtype))
    types = [TensorType(tuple(t.shape), from_torch(t.dtype)) for t in stored]
    held = [b.weight(role, type_) for role, type_ in zip(format.roles, types, strict=True)]
    y = b.op("tensor.linear_packed", x, *held, n=n, format=format.name, interleave=parts, dtype=DType.F32)
    rows = torch.eye(k)[: min(k, 3)].to(weight.dtype)
    out = interpret(Graph((x,), (y,), ("y",)), {"x": rows}, dict(zip(format.roles, stored, strict=True)))["y"]
    want = torch.nn.functional.linear(rows.float(), format.unpack(stored, n, parts).float())
    if not torch.equal(out.nan_to_num(nan=7.0), want.nan_to_num(nan=7.0)):
        raise problem("gives another product by the reference than its unpacked weight")
