"""One op with operands, and everything that must be true of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.registry import infer_types
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify
from inferir.testing.compare import Difference, compare
from inferir.testing.failures import CheckFailedError, failed
from inferir.testing.op_forms import NUMBER
from inferir.testing.op_references import Expected
from inferir.testing.op_values import CANCELLING, OpCase

if TYPE_CHECKING:
    import torch

SINGLE, ONE_ROUNDING = 4e-6, 2.0**-8
"""How far float32 functions may be off what float64 gives, relatively; and half precision for every rounding."""


def graph_of(case: OpCase, decomposed: bool = False) -> Graph:
    """The op, or its decomposition, over inputs. Raises `IRError` if the op does not take them."""
    b = Builder()
    inputs: list[Value] = []
    operands: list[Value] = []
    for i, (spec, given) in enumerate(zip(case.specs, case.operands, strict=True)):
        if spec.kind == NUMBER:
            operands.append(b.scalar(given))
        else:
            inputs.append(b.input(f"x{i}", spec.type(case.dtype)))
            operands.append(inputs[-1])
    node = b.node(case.op.name, operands, case.attrs)
    outputs: tuple[Value, ...] = node.results
    if decomposed:
        assert case.op.decompose is not None
        made = case.op.decompose(Builder(), tuple(operands), node.attrs)
        outputs = tuple(made) if isinstance(made, tuple) else (made,)
    return Graph(tuple(inputs), outputs, name="op")


def tensors_of(case: OpCase) -> dict[str, torch.Tensor]:
    """The inputs of `graph_of`, by name."""
    return {f"x{i}": t for i, (s, t) in enumerate(zip(case.specs, case.operands, strict=True)) if s.kind != NUMBER}


def check_case(case: OpCase, expected: Expected | None) -> None:
    """The types of results, the decomposition, and what the op means by `expected`. Raises `CheckFailedError`."""
    graph = graph_of(case)
    verify(graph)
    out = _evaluated(case, graph)
    tokens = next((t.shape[s.shape.index(T)] for s, t in _tensors(case) if T in s.shape), 1)
    for value, tensor in zip(graph.outputs, out, strict=True):
        if not hasattr(tensor, "dtype"):
            raise failure(case, f"evaluates to {tensor!r}, which is no tensor", graph)
        if tensor.dtype != torch_dtype(value.type.dtype) or tuple(tensor.shape) != value.type.concrete({"T": tokens}):
            made = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            raise failure(case, f"is inferred to be {value.type}, but evaluates to {made}", graph)
    if case.op.decompose is not None:
        _check_decomposition(case, graph, out)
    if expected is not None:
        _check_meaning(case, graph, out, expected)


def _tensors(case: OpCase) -> list[tuple[Any, Any]]:
    return [(s, t) for s, t in zip(case.specs, case.operands, strict=True) if s.kind != NUMBER]


def _evaluated(case: OpCase, graph: Graph) -> list[torch.Tensor]:
    try:
        return list(interpret(graph, tensors_of(case)).values())
    except Exception as error:
        raise failure(case, f"cannot be evaluated: {type(error).__name__}: {error}", graph) from error


def _check_decomposition(case: OpCase, graph: Graph, out: Sequence[torch.Tensor]) -> None:
    try:
        parts = graph_of(case, decomposed=True)
        verify(parts)
    except IRError as error:
        raise failure(case, f"has a decomposition that is malformed: {error}", graph) from None
    for have, want in zip(parts.outputs, graph.outputs, strict=True):
        if have.type != want.type:
            raise failure(case, f"is {want.type}, but its decomposition is {have.type}", graph, parts)
    for got, wanted in zip(_evaluated(case, parts), out, strict=True):
        found = difference(got, wanted, case)
        if found is not None:
            raise failure(case, f"differs from its decomposition: {found}", graph, parts)


def _check_meaning(case: OpCase, graph: Graph, out: Sequence[torch.Tensor], expected: Expected) -> None:
    def wide(spec: Any, given: Any) -> Any:
        if spec.kind == NUMBER:
            return held(case, given)
        return given.double() if given.is_floating_point() else given

    attrs = graph.outputs[0].node.attrs
    tokens = next((t.shape[s.shape.index(T)] for s, t in _tensors(case) if T in s.shape), 1)
    plain = {k: _concrete(v, tokens) for k, v in attrs.items()}
    given = [wide(s, t) for s, t in zip(case.specs, case.operands, strict=True)]
    made: Any = expected(plain, *given)
    for got, want in zip(out, made if isinstance(made, tuple) else (made,), strict=True):
        wanted = want.to(got.dtype)
        if tuple(wanted.shape) != tuple(got.shape):
            raise failure(case, f"has the shape {list(got.shape)}, and should have {list(wanted.shape)}", graph)
        found = difference(got, wanted, case)
        if found is not None:
            raise failure(case, f"is not what it means: {found}", graph)


def held(case: OpCase, value: float) -> float:
    """A number as it meets a tensor: as float32 where the op keeps its precision, else as the tensor's type."""
    import torch

    position = next(i for i, s in enumerate(case.specs) if s.kind == NUMBER)
    exact = position in case.op.exact_numbers
    return float(torch.tensor(value, dtype=torch.float32 if exact else torch_dtype(case.dtype)))


def _concrete(value: Any, tokens: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_concrete(v, tokens) for v in value)
    return int(value.subs(T, tokens)) if hasattr(value, "subs") else value


def difference(got: torch.Tensor, want: torch.Tensor, case: OpCase, flushes: bool = False) -> Difference | None:
    """Integers and truth values must be equal, and floats but for roundings. flushes: subnormal numbers in bf16 may be
    zero.
    """
    import torch

    if not want.dtype.is_floating_point or case.op.moves:
        return compare(got, want, flushes=flushes and want.dtype == torch.bfloat16)
    roundings = 1 if case.op.name.startswith("tensor.") else 3
    relative = SINGLE if want.dtype == torch.float32 else 2 * ONE_ROUNDING * roundings
    sizes = [float(t.double().nan_to_num(0, 0, 0).abs().max()) for _, t in _tensors(case) if t.numel()]
    scale = min(max(sizes, default=0.0), 1e4) if not case.op.elementwise or case.op.name in CANCELLING else 0.0
    tiny = 2 * torch.finfo(want.dtype).smallest_normal
    return compare(got, want, relative, max(scale, tiny / relative))


def check_misuse(case: OpCase) -> None:
    """Operands and attributes that the op does not take are refused with `IRError`. Raises `CheckFailedError`."""
    op = case.op
    types = [TensorType((), DType.F64) if s.kind == NUMBER else s.type(case.dtype) for s in case.specs]
    attrs = {**op.defaults, **case.attrs}
    low, high = (op.arity, op.arity) if isinstance(op.arity, int) else op.arity
    plain = TensorType((T, 4), case.dtype)
    wrong: list[tuple[str, list[TensorType], dict[str, Any]]] = [
        ("an unknown attribute", types, {**attrs, "nonsense": 1})
    ]
    if low > 0:
        wrong.append((f"{low - 1} operands", types[: low - 1], attrs))
    if high is not None:
        wrong.append((f"{high + 1} operands", [*types, *[plain] * (high + 1 - len(types))], attrs))
    for key in op.attrs:
        wrong.append((f"no attribute {key}", types, {k: v for k, v in attrs.items() if k != key}))
        wrong.append((f"an attribute {key} of another type", types, {**attrs, key: object()}))
    for what, given, values in wrong:
        _refused(case, what, given, values, must=True)
    shapes = ((), (1,), (T,), (3, 5), (T, 2, 3), (2, T))
    for dtype in (DType.I32, DType.BOOL, DType.F64, case.dtype):
        for shape in shapes:
            for i in range(len(types)):
                _refused(case, "", [*types[:i], TensorType(shape, dtype), *types[i + 1 :]], attrs, must=False)


def _refused(case: OpCase, what: str, types: Sequence[TensorType], attrs: dict[str, Any], must: bool) -> None:
    shown = ", ".join(map(str, types))
    try:
        infer_types(case.op, types, Attrs(attrs))
    except IRError:
        return
    except Exception as error:
        raise CheckFailedError(
            f"{case.op.name} of ({shown}) must be refused with IRError, but raised {type(error).__name__}: {error}"
        ) from error
    if must:
        raise CheckFailedError(f"{case.op.name} takes {what}: ({shown})")


def failure(case: OpCase, problem: str, graph: Graph, parts: Graph | None = None) -> CheckFailedError:
    """With the op as a graph, and the values that it was given."""
    shown: list[tuple[str, object]] = [("graph", graph)]
    if parts is not None:
        shown.append(("decomposition", parts))
    shown.append(("values", "\n".join(f"%{name} = {tensor.tolist()}" for name, tensor in tensors_of(case).items())))
    return failed(f"{case.op.name} in {case.dtype.value} {problem}", shown, graph)
