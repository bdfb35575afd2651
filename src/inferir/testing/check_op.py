"""`check_op`: what every op must keep to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import IRError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.registry import OpDef, opdef
from inferir.ir.graph.types import TensorType
from inferir.testing.failures import failed, require_libraries
from inferir.testing.hypothesis_run import smallest_failure
from inferir.testing.op_forms import ELSEWHERE, Form, Spec, forms_of

if TYPE_CHECKING:
    import torch

GivenForm = tuple[Sequence[TensorType], Mapping[str, Any]]
"""Types of operands and attributes."""


@dataclass
class OpReport:
    """What a check of ops did. cases: how many were evaluated; against: what each op was compared with."""

    cases: int = 0
    against: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: {', '.join(with_) or 'its types'}" for name, with_ in self.against.items()]
        kernels = "; ".join(f"{count} kernels for {kind}" for kind, count in self.kernels.items())
        return "\n".join([*lines, f"{self.cases} cases; {kernels or 'no kernels'}"])


def check_op(
    op: OpDef | str | Sequence[OpDef | str],
    *,
    forms: Sequence[GivenForm] | None = None,
    expected: Callable[..., torch.Tensor] | None = None,
    traced: Callable[..., torch.Tensor] | None = None,
    dtypes: Sequence[DType] = (DType.F32, DType.BF16, DType.F16),
    backends: Sequence[str] | None = None,
    examples: int = 100,
    seed: int = 0,
) -> OpReport:
    """Evaluate ops on special and plain numbers in small shapes, and compare all that says what they mean.

    The inferred types are those of the results; the decomposition, if there is one, has the same types and values;
    operands and attributes that an op does not take raise `IRError`; the import rule gives what PyTorch does; kernels
    of every backend that has a form for the op give what the reference does, for rows that fill vectors and rows that
    do not.

    op: one or several, by name or definition (several share the kernel's libraries). forms: types of operands, with
      tokens `T` as the first dimension of rows, and attributes, for an op that does not work element by element.
    expected: what the op means, by other means: a function of (attributes, *float64 tensors) in PyTorch; `traced`: a
      function of (module, x [1, T, 8], positions [1, T]) whose trace must have the op. Ops of this package have both.
    backends: kinds of targets whose kernels are compared; default all that this machine can run, () for none.

    Raises `CheckFailedError` with the smallest operands that were found to fail.
    """
    require_libraries("check_op")
    many = [op] if isinstance(op, (str, OpDef)) else list(op)
    definitions = [opdef(o) if isinstance(o, str) else o for o in many]
    report = OpReport()
    known: list[tuple[OpDef, Sequence[Form]]] = []
    for definition in definitions:
        own = _given(forms) if forms is not None else _forms(definition)
        known.append((definition, own))
        _check_one(definition, own, expected, traced, dtypes, examples, seed, report)
    if backends is None or backends:
        from inferir.testing.op_kernels import check_kernels

        report.kernels = check_kernels(known, dtypes, backends)
    return report


def _forms(op: OpDef) -> Sequence[Form]:
    reason = ELSEWHERE.get(op.name) or (ELSEWHERE["layout.pack_*"] if op.name.startswith("layout.pack_") else None)
    if reason is not None:
        raise IRError(f"{op.name} is not checked by check_op: see {reason}")
    return forms_of(op)


def _given(forms: Sequence[GivenForm]) -> list[Form]:
    """Forms from types; floats become the type that is checked."""

    def form(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Form:
        specs = [_spec(t) for t in types]
        return lambda n: (specs, dict(attrs))

    return [form(*given) for given in forms]


def _spec(type_: TensorType) -> Spec:
    if type_.dtype is DType.BOOL:
        return Spec(type_.shape, "bool")
    if type_.dtype.is_int:
        return Spec(type_.shape, "index", 4)
    return Spec(type_.shape)


def _check_one(
    op: OpDef,
    forms: Sequence[Form],
    expected: Callable[..., torch.Tensor] | None,
    traced: Callable[..., torch.Tensor] | None,
    dtypes: Sequence[DType],
    examples: int,
    seed: int,
    report: OpReport,
) -> None:
    from inferir.testing.op_import import check_import
    from inferir.testing.op_references import EXPECTED, TRACED
    from inferir.testing.op_rules import check_case, check_misuse
    from inferir.testing.op_values import OpCase, cases, dense_case

    expected, traced = expected or EXPECTED.get(op.name), traced or TRACED.get(op.name)
    if op.evaluate is None:
        raise failed(f"{op.name} has no reference implementation")

    def check(case: OpCase) -> None:
        report.cases += 1
        check_case(case, expected)

    failure = smallest_failure(check, cases(op, forms, dtypes), examples, seed)
    if failure is not None:
        raise failure
    for form in forms:
        check_misuse(dense_case(op, form, dtypes[0], 2, 2))
    if traced is not None:
        check_import(op.name, traced)
    report.against[op.name] = [
        *(["its decomposition"] if op.decompose is not None else []),
        *(["what it means"] if expected is not None else []),
        *(["its import rule"] if traced is not None else []),
    ]
