"""The state of one import of an exported program: what rules get as first argument.

Token ids and positions are 32-bit in the graph although PyTorch's are 64-bit; index arithmetic on them stays 32-bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from inferir.frontend.capture.export import PREFIX
from inferir.frontend.capture.hooks import MaskSpec
from inferir.frontend.capture.trace_failures import short_path
from inferir.frontend.facts import LayerFacts
from inferir.ir.errors import IRError, UntraceableError
from inferir.ir.graph.dims import Dim, T, as_dim
from inferir.ir.graph.dtypes import DType, from_torch
from inferir.ir.graph.graph import Builder, Provenance, Value
from inferir.ir.graph.types import TensorType

CONSTANT_PREFIX = "const."
MAX_CONSTANT = 1 << 22  # elements; anything larger should be a weight


Imports = Any  # Value | torch.Tensor (constant) | MaskSpec (of a mask marker) | Dim | list of those | None
Rule = Callable[..., Any]
"""(importer, the operator's arguments as imported) -> what it becomes (`Imports`)."""

RULES: dict[str, Rule] = {}
"""The import rules of PyTorch's operators, which enter it from `aten/`."""

_FRAME = re.compile(r'File "(.+?)", line (\d+).*\n\s*(.*)')


def rule(*targets: str) -> Callable[[Rule], Rule]:
    """Register a function as the import rule of the operators named `targets` (as printed, e.g. `aten.add.Tensor`)."""

    def register(function: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise IRError(f"two import rules for {target}")
            RULES[target] = function
        return function

    return register


def module_path(node: Any) -> str:
    """Path of the module whose forward made `node`, in the model's own naming."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else ""


def source_line(node: Any) -> str:
    """`file:line: code` of the model code that made `node`, "" if unknown."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return f"{short_path(frames[-1][0])}:{frames[-1][1]}: {frames[-1][2]}" if frames else ""


@dataclass
class Importer:
    """State of one import; rules get it as first argument and work on the node being imported.

    added: the operators that were imported by rules of other distributions, and whose dialect has the rule.
    """

    symbol: sympy.Symbol
    builder: Builder = field(default_factory=Builder)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    attention: list[LayerFacts] = field(default_factory=list)
    node: Any = None
    added: dict[str, str] = field(default_factory=dict)
    _scalars: dict[Any, Value] = field(default_factory=dict)
    _constants: dict[int, tuple[torch.Tensor, Value]] = field(default_factory=dict)

    # --- about the current node ---

    @property
    def loc(self) -> Provenance:
        return Provenance(module_path(self.node), str(self.node.target).removesuffix(".default"))

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
        where = module_path(self.node)
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
        if isinstance(x, MaskSpec):
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
