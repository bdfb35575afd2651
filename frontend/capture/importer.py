"""Import an exported program as an IR graph in `tensor.*`, `nn.layer_norm` and `attn.attention` ops.

Only nodes that the logits depend on are imported. The leading batch dimension of 1 stays. Casts that PyTorch's type
promotion implies become explicit. Computations on constants alone (rotary frequencies, embedding scales) are
evaluated here. What an imported node's type must be is known from the trace and checked, so a wrong rule cannot go
unnoticed.

Token ids and positions are 32-bit in the graph although PyTorch's are 64-bit; index arithmetic on them stays 32-bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from inferir.frontend.capture.export import Exported
from inferir.frontend.capture.hooks import MaskSpec
from inferir.frontend.capture.trace_failures import short_path
from inferir.ir.errors import IRError, UntraceableError
from inferir.ir.graph.dims import Dim, T, as_dim
from inferir.ir.graph.dtypes import DType, from_torch
from inferir.ir.graph.graph import Builder, Graph, Provenance, Value
from inferir.ir.graph.types import TensorType

CONSTANT_PREFIX = "const."
MAX_CONSTANT = 1 << 22  # elements; anything larger should be a weight


@dataclass(frozen=True)
class AttentionCall:
    """One attention layer as traced."""

    layer: int
    module: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int
    softcap: float
    scale: float


@dataclass(frozen=True)
class Imported:
    """The captured graph; values of its `const.*` weights; its attention layers in order."""

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    attention: tuple[AttentionCall, ...]


class UnsupportedOperatorError(UntraceableError):
    """An operator without import rule."""


@dataclass(frozen=True)
class Mask:
    """The value of a mask marker."""

    spec: MaskSpec


Imports = Any  # Value | torch.Tensor (constant) | Mask | Dim | list of those | None
Rule = Callable[..., Imports]
RULES: dict[str, Rule] = {}


def rule(*targets: str) -> Callable[[Rule], Rule]:
    """Register a function as the import rule of the operators named `targets` (as printed, e.g. `aten.add.Tensor`)."""

    def register(function: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise IRError(f"two import rules for {target}")
            RULES[target] = function
        return function

    return register


def module_path(node: Any, prefix: str) -> str:
    """Path of the module whose forward made `node`, in the model's own naming."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    return path.removeprefix(prefix) if path.startswith(prefix) else ""


def source_line(node: Any) -> str:
    """`file:line: code` of the model code that made `node`, "" if unknown."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    if not places:
        return ""
    parts = lines[places[-1]].split('"')
    number = parts[2].split("line ")[-1].split(",")[0].strip() if len(parts) > 2 else ""
    code = lines[places[-1] + 1] if places[-1] + 1 < len(lines) else ""
    return f"{short_path(parts[1]) if len(parts) > 1 else ''}:{number}: {code}"


@dataclass
class Importer:
    """State of one import; rules get it as first argument and work on the node being imported."""

    symbol: sympy.Symbol
    prefix: str
    builder: Builder = field(default_factory=Builder)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    attention: list[AttentionCall] = field(default_factory=list)
    node: Any = None
    _scalars: dict[Any, Value] = field(default_factory=dict)
    _constants: dict[int, tuple[torch.Tensor, Value]] = field(default_factory=dict)

    # --- about the current node ---

    @property
    def loc(self) -> Provenance:
        return Provenance(module_path(self.node, self.prefix), str(self.node.target).removesuffix(".default"))

    @property
    def val(self) -> torch.Tensor:
        """The traced result, for its shape and dtype."""
        val = self.node.meta["val"]
        assert isinstance(val, torch.Tensor)
        return val

    def argument(self, index: int) -> Any:
        """The traced value of an argument (a tensor for its shape and dtype, or a number)."""
        argument = self.node.args[index]
        return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument

    def refuse(self, reason: str) -> UntraceableError:
        """An error that names operator, module and source line of the current node."""
        return UntraceableError(self.describe(reason))

    def describe(self, reason: str) -> str:
        where = module_path(self.node, self.prefix)
        line = source_line(self.node)
        return f"{self.node.target} in module {where or '(top)'!r}{f' ({line})' if line else ''}: {reason}"

    # --- types ---

    def dim(self, size: Any) -> Dim:
        """A traced size as IR dimension. Raises `UntraceableError` if it is no polynomial in the token count."""
        if isinstance(size, int):
            return size
        expr = size.node.expr if hasattr(size, "node") else sympy.sympify(size)
        expr = expr.subs(self.symbol, T)
        if expr.free_symbols - {T} or expr.atoms(sympy.Function):
            raise self.refuse(f"the size {expr} is not a simple function of the number of tokens")
        return as_dim(expr)

    def shape(self, val: torch.Tensor) -> tuple[Dim, ...]:
        return tuple(self.dim(s) for s in val.shape)

    def dtype(self, dtype: torch.dtype) -> DType:
        try:
            return from_torch(dtype)
        except KeyError:
            raise self.refuse(f"element type {dtype} is not supported") from None

    # --- values ---

    def value(self, x: Imports, dtype: torch.dtype | None = None) -> Value:
        """An operand as IR value: numbers and rank-0 constants become weak scalars, other constants `const.*` weights.

        dtype: cast to it, unless it is int64 and the value is 32-bit (see above).
        """
        if isinstance(x, torch.Tensor):
            x = self.scalar(x.item()) if x.dim() == 0 else self.constant(x if dtype is None else x.to(dtype))
        elif isinstance(x, (bool, int, float)):
            x = self.scalar(x)
        if isinstance(x, Mask):
            raise self.refuse("an attention mask is used outside attention")
        if not isinstance(x, Value):
            raise self.refuse(f"the operand {x!r} is not a tensor")
        if dtype is None or x.op == "core.scalar":
            return x
        want = self.dtype(dtype)
        if x.type.dtype is want or (want is DType.I64 and x.type.dtype is DType.I32):
            return x
        return self.op("tensor.cast", x, dtype=want)

    def scalar(self, number: float) -> Value:
        key = (type(number), repr(number))
        if key not in self._scalars:
            self._scalars[key] = self.builder.scalar(number)
        return self._scalars[key]

    def constant(self, tensor: torch.Tensor, name: str = "") -> Value:
        """A `const.*` weight holding `tensor`."""
        known = self._constants.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.numel() > MAX_CONSTANT:
            raise self.refuse(f"a constant of shape {tuple(tensor.shape)} is too large to embed")
        name = name or f"{self.loc.module or 'model'}.{self.node.name}"
        full = CONSTANT_PREFIX + name
        self.constants[full] = tensor.detach().clone().contiguous()
        value = self.builder.weight(
            full, TensorType(tuple(tensor.shape), self.dtype(tensor.dtype)), loc=Provenance(name, "buffer")
        )
        self._constants[id(tensor)] = (tensor, value)  # the tensor is kept alive, so that its id stays its own
        return value

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        return self.builder.op(name, *operands, loc=self.loc, **attrs)

    def view(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.type.shape == tuple(shape) else self.op("tensor.view", x, shape=tuple(shape))


def import_program(exported: Exported, aliases: Mapping[str, str] | None = None) -> Imported:
    """The IR graph (ids, positions and perhaps lengths, [T] i32) -> logits [T, V] f32 of an exported program.

    aliases: names of tied parameters -> the name to use. Raises `UnsupportedOperatorError` naming operator and
    module for an operator without rule, `UntraceableError` for a use that the IR cannot express.
    """
    from inferir.frontend.capture import aten

    assert aten.RULES is RULES
    program = exported.program
    imp = Importer(exported.symbol, exported.prefix)
    env: dict[Any, Imports] = {}
    inputs: dict[str, Value] = {}
    targets = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    live = _live_nodes(program)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node in live or targets[node.name].kind.name == "USER_INPUT":
                env[node] = _placeholder(imp, node, targets[node.name], program, aliases or {}, inputs)
        elif node.op == "call_function" and node in live:
            imp.node = node
            env[node] = _import(imp, node, env)
    output = next(n for n in program.graph.nodes if n.op == "output").args[0][0]
    imp.node = output
    logits = imp.value(env[output], torch.float32)
    ordered = tuple(inputs[name] for name in ("ids", "positions", "lengths") if name in inputs)
    graph = Graph(ordered, (logits,), ("logits",), name="captured")
    used = graph.weights()
    constants = {name: tensor for name, tensor in imp.constants.items() if name in used}
    return Imported(graph, constants, tuple(imp.attention))


def _live_nodes(program: Any) -> set[Any]:
    """Nodes that the outputs depend on through values; what feeds only a mask marker does not count."""
    stack = [n for n in program.graph.nodes if n.op == "output"]
    live: set[Any] = set(stack)
    while stack:
        node = stack.pop()
        if str(node.target) == "inferir.mask.default":
            continue
        for operand in node.all_input_nodes:
            if operand not in live:
                live.add(operand)
                stack.append(operand)
    return live


def _placeholder(
    imp: Importer, node: Any, spec: Any, program: Any, aliases: Mapping[str, str], inputs: dict[str, Value]
) -> Imports:
    imp.node = node
    if spec.kind.name == "USER_INPUT":
        inputs[node.name] = imp.builder.input(node.name, TensorType(imp.shape(node.meta["val"]), DType.I32))
        return inputs[node.name]
    name = str(spec.target)
    path = name.removeprefix(imp.prefix)
    if spec.kind.name == "PARAMETER" or (spec.kind.name == "BUFFER" and spec.persistent):
        path = aliases.get(path, path)
        loc = Provenance(path, "weight")
        return imp.builder.weight(
            path, TensorType(imp.shape(node.meta["val"]), imp.dtype(node.meta["val"].dtype)), loc=loc
        )
    if spec.kind.name == "BUFFER":
        tensor = program.constants[name] if name in program.constants else program.state_dict[name]
        return _named_constant(imp, tensor, path)
    if spec.kind.name == "CONSTANT_TENSOR":
        return program.constants[name]
    raise imp.refuse(f"an input of kind {spec.kind.name} is not supported")


def _named_constant(imp: Importer, tensor: torch.Tensor, path: str) -> torch.Tensor:
    """Remember the buffer's name for the case that it is used as it is."""
    if tensor.dim() and tensor.numel() <= MAX_CONSTANT:
        imp.constant(tensor, path)
    return tensor


def _resolve(x: Any, env: Mapping[Any, Imports]) -> Any:
    """Arguments with nodes replaced by what they were imported as (None where a mask marker is all that uses them)."""
    if isinstance(x, torch.fx.Node):
        return env.get(x)
    if isinstance(x, (list, tuple)):
        return [_resolve(i, env) for i in x]
    return x


def _leaves(args: Any) -> Iterator[Any]:
    for x in args:
        if isinstance(x, list):
            yield from _leaves(x)
        else:
            yield x


@functools.cache
def _is_pure(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ())


def _import(imp: Importer, node: Any, env: Mapping[Any, Imports]) -> Imports:
    val = node.meta.get("val")
    if isinstance(val, (torch.SymInt, int)) and not isinstance(val, bool):
        return imp.dim(val)
    args, kwargs = _resolve(node.args, env), {k: _resolve(v, env) for k, v in node.kwargs.items()}
    name = str(node.target)
    operands = list(_leaves([*args, *kwargs.values()]))
    if name.startswith("aten.") and not any(isinstance(x, (Value, Mask, sympy.Expr)) for x in operands):
        if "empty" in name or not _is_pure(node.target):
            raise imp.refuse("the result is not determined by the model's inputs")
        with torch.no_grad():
            return node.target(*args, **kwargs)
    function = RULES.get(name) or (RULES["getitem"] if name == "<built-in function getitem>" else None)
    if function is None:
        raise UnsupportedOperatorError(imp.describe("this operator has no import rule"))
    try:
        result = function(imp, *args, **kwargs)
    except IRError as error:
        raise imp.refuse(str(error)) from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise imp.refuse(f"this form of the operator is not supported ({error})") from error
    _check(imp, result, val)
    return result


def _check(imp: Importer, result: Imports, val: Any) -> None:
    """The imported type must be the traced one (32-bit indices stand for 64-bit ones)."""
    if isinstance(val, (list, tuple)):
        for r, v in zip(result, val, strict=False):
            _check(imp, r, v)
        return
    if not isinstance(result, Value) or not isinstance(val, torch.Tensor):
        return
    want = TensorType(imp.shape(val), imp.dtype(val.dtype))
    narrow = want.dtype is DType.I64 and result.type.dtype is DType.I32
    if result.type.shape != want.shape or not (narrow or result.type.dtype is want.dtype):
        raise imp.refuse(f"imported as {result.type}, but the trace has {want}")
