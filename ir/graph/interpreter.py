"""The reference interpreter: executes any graph with torch. It is the oracle of passes and kernels, not for serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from inferir.ir.errors import IRError
from inferir.ir.graph.analysis import last_uses
from inferir.ir.graph.attrs import Attrs, AttrValue
from inferir.ir.graph.dims import substitute
from inferir.ir.graph.dtypes import torch_dtype
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType

Observe = Callable[[Node, tuple[Any, ...]], None]


def interpret(
    graph: Graph, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None, observe: Observe | None = None
) -> dict[str, Any]:
    """Run `graph`; returns torch tensors by output name.

    inputs and weights: torch tensors by name; symbols are bound from the shapes of the inputs and checked. `observe` is
    called with every node and its results. Raises `IRError` naming an input or weight that is missing or does not fit
    its type, or a symbol that no input binds.
    """
    tensors = []
    for name in graph.input_names:
        if name not in inputs:
            raise IRError(f"input {name!r} is missing")
        tensors.append(inputs[name])
    outs = _run(graph, tensors, weights or {}, {}, observe)
    return dict(zip(graph.output_names, outs, strict=True))


def run_body(graph: Graph, tensors: Sequence[Any]) -> list[Any]:
    """Run a region's body on its operands, in order."""
    return _run(graph, tensors, {}, {}, None)


def _bind(name: str, type_: TensorType, tensor: Any, symbols: dict[str, int]) -> None:
    if tensor.dtype != torch_dtype(type_.dtype) or tensor.dim() != type_.rank:
        raise IRError(f"{name!r} is {type_}, given {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    for dim, size in zip(type_.shape, tensor.shape, strict=True):
        if isinstance(dim, sympy.Symbol):
            if symbols.setdefault(str(dim), int(size)) != size:
                raise IRError(f"{name!r} has {dim} = {size}, but {dim} is {symbols[str(dim)]} already")
        elif isinstance(dim, int) and dim != size:
            raise IRError(f"{name!r} is {type_}, given shape {list(tensor.shape)}")


def _concrete(value: AttrValue, symbols: Mapping[str, int]) -> AttrValue:
    if isinstance(value, sympy.Expr):
        return substitute(value, symbols)
    if isinstance(value, tuple):
        return tuple(_concrete(v, symbols) for v in value)
    return value


def _symbolic(attrs: Attrs) -> bool:
    return any(
        isinstance(v, sympy.Expr) or (isinstance(v, tuple) and any(isinstance(x, sympy.Expr) for x in v))
        for v in attrs.values()
    )


def _run(
    graph: Graph, tensors: Sequence[Any], weights: Mapping[str, Any], symbols: dict[str, int], observe: Observe | None
) -> list[Any]:
    env: dict[Value, Any] = {}
    for value, name, tensor in zip(graph.inputs, graph.input_names, tensors, strict=True):
        if not isinstance(tensor, (bool, int, float)):
            _bind(name, value.type, tensor, symbols)
        env[value] = tensor
    last_use = last_uses(graph.nodes)
    keep = set(graph.outputs)
    for i, node in enumerate(graph.nodes):
        if node.op == "core.input":
            continue
        out = _eval(node, env, weights, symbols)
        env.update(zip(node.results, out, strict=True))
        if observe is not None:
            observe(node, out)
        for operand in node.operands:
            if last_use[operand] == i and operand not in keep:
                env.pop(operand, None)
    return [env[v] for v in graph.outputs]


def _eval(node: Node, env: Mapping[Value, Any], weights: Mapping[str, Any], symbols: dict[str, int]) -> tuple[Any, ...]:
    if node.op == "core.scalar":
        return (node.attrs["value"],)
    if node.op == "core.weight":
        name = str(node.attrs["name"])
        if name not in weights:
            raise IRError(f"weight {name!r} is missing")
        _bind(name, node.types[0], weights[name], symbols)
        return (weights[name],)
    evaluate = opdef(node.op).evaluate
    if evaluate is None:
        raise IRError(f"{node.op} has no reference implementation")
    attrs = node.attrs
    if _symbolic(attrs):
        try:
            attrs = Attrs({k: _concrete(v, symbols) for k, v in attrs.items()})
        except KeyError as missing:
            raise IRError(
                f"{node.op} at {str(node.loc) or 'unknown place'} needs {missing}, which no input binds"
            ) from None
    out = evaluate(attrs, *(env[v] for v in node.operands))
    return out if isinstance(out, tuple) else (out,)
