"""Import an exported program as an IR graph in `tensor.*`, `nn.layer_norm` and `attn.attention` ops.

Only nodes that the logits depend on are imported. The leading batch dimension of 1 stays. Casts that PyTorch's type
promotion implies become explicit. Computations on constants alone (rotary frequencies, embedding scales) are
evaluated here. What an imported node's type must be is known from the trace and checked, so a wrong rule cannot go
unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from inferir.frontend.capture.aten import RULES
from inferir.frontend.capture.export import PREFIX, Exported
from inferir.frontend.capture.hooks import MaskSpec
from inferir.frontend.capture.importer import MAX_CONSTANT, Importer, Imports
from inferir.frontend.capture.plugin_rules import absent_rules, added_rule
from inferir.frontend.facts import LayerFacts
from inferir.ir.errors import IRError, UntraceableError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Provenance, Value
from inferir.ir.graph.types import TensorType


@dataclass(frozen=True)
class Imported:
    """The captured graph; values of its `const.*` weights; its attention layers in order. added: operators that were
    imported by rules of other distributions, and whose dialect has the rule.
    """

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    attention: tuple[LayerFacts, ...]
    added: Mapping[str, str]


class UnsupportedOperatorError(UntraceableError):
    """An operator without import rule."""


def import_program(exported: Exported, aliases: Mapping[str, str] | None = None) -> Imported:
    """The IR graph (ids, positions and perhaps lengths, [T] i32) -> logits [T, V] f32 of an exported program.

    aliases: names of tied parameters -> the name to use. Raises `UnsupportedOperatorError` naming operator and
    module for an operator without rule, `UntraceableError` for a use that the IR cannot express.
    """
    program = exported.program
    imp = Importer(exported.symbol)
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
    return Imported(graph, constants, tuple(imp.attention), imp.added)


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
    path = name.removeprefix(PREFIX)
    if spec.kind.name == "PARAMETER" or (spec.kind.name == "BUFFER" and spec.persistent):
        path = aliases.get(path, path)
        loc = Provenance(path, "weight")
        return imp.builder.weight(
            path, TensorType(imp.shape(node.meta["val"]), imp.dtype(node.meta["val"].dtype)), loc=loc
        )
    if spec.kind.name == "BUFFER":
        tensor = program.constants[name] if name in program.constants else program.state_dict[name]
        if tensor.dim() and tensor.numel() <= MAX_CONSTANT:
            imp.constant(tensor, path)  # remembers its name for the case that it is used as it is
        return tensor
    if spec.kind.name == "CONSTANT_TENSOR":
        return program.constants[name]
    raise imp.refuse(f"an input of kind {spec.kind.name} is not supported")


def _import(imp: Importer, node: Any, env: Mapping[Any, Imports]) -> Imports:
    val = node.meta.get("val")
    if isinstance(val, (torch.SymInt, int)) and not isinstance(val, bool):
        return imp.dim(val)
    # Every node is replaced by what it was imported as; None where a mask marker is all that uses it.
    args, kwargs = map_arg((node.args, node.kwargs), env.get)
    name = str(node.target)
    operands = tree_leaves((args, kwargs))
    if name.startswith("aten.") and not any(isinstance(x, (Value, MaskSpec, sympy.Expr)) for x in operands):
        if "empty" in name or torch.Tag.nondeterministic_seeded in node.target.tags:
            raise imp.refuse("the result is not determined by the model's inputs")
        with torch.no_grad():
            return node.target(*args, **kwargs)
    function = RULES.get(name) or (RULES["getitem"] if name == "<built-in function getitem>" else None)
    function = function or added_rule(imp, name)
    if function is None:
        raise UnsupportedOperatorError(imp.describe(f"this operator has no import rule{absent_rules()}"))
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
