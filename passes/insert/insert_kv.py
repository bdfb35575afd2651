"""insert-kv: captured attention over one sequence becomes writes to, and attention over, the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec, KVCacheSpec
from inferir.ir.errors import IRError
from inferir.ir.graph.dims import NB
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import Rebuilder
from inferir.ir.graph.types import TensorType
from inferir.passes.context import PAGED, POSITIONS_TABULATED, RAGGED, Pass, PassContext, refuse
from inferir.passes.insert.kv_grouping import group_layers
from inferir.passes.insert.step_input import step_input

_INDEX_INPUTS = ("ids", "positions")


@dataclass(frozen=True)
class InsertKv(Pass):
    """Groups layers by the cache they need, which the context gets to know, and adds their step inputs: per group slots
    [T] and block tables [S, MB], per rule of what tokens read work items [A, 6] (i32), and the caches of every layer.
    Keys and values are written to the caches, which become outputs, and attention reads them. `ids` and `positions`
    become i32. Scale, softcap and the rule of every layer are kept.
    """

    block_size: int
    max_model_len: int
    context: PassContext = field(default_factory=PassContext, compare=False, repr=False)

    name = "insert-kv"
    why = "serving keeps keys and values of earlier steps in blocks"
    requires = frozenset({RAGGED, POSITIONS_TABULATED})
    ensures = frozenset({PAGED})

    def run(self, graph: Graph) -> Graph:
        b = Builder()
        indices = {
            v: b.input(v.node.attrs["name"], TensorType(v.type.shape, DType.I32), v.node.loc)
            for v in graph.inputs
            if _is_index(v)
        }
        self.context.kv = group_layers(self._specs(graph), self.max_model_len)
        inputs = _inputs(self.context.kv)
        group_of = {layer: group for group in self.context.kv for layer in group.layers}
        written: dict[str, Value] = {}
        walk = Rebuilder(graph, indices)

        def visit(node: Node, operands: tuple[Value, ...]) -> Value | tuple[Value, ...] | None:
            if node.op == "attn.attention":
                return self._paged(node, operands, group_of[node.attrs["layer"]], inputs, written)
            if any(v in indices for v in node.operands) and not opdef(node.op).lookup:
                wide = [
                    Builder(node.loc).op("tensor.cast", new, dtype=old.type.dtype)
                    if old in indices and old.type != new.type
                    else new
                    for old, new in zip(node.operands, operands, strict=True)
                ]
                return Builder(node.loc).node(node.op, wide, node.attrs).results
            return None

        walk.run(visit)
        return walk.graph_with(tuple(inputs.values()), written)

    def _specs(self, graph: Graph) -> dict[int, KVCacheSpec]:
        """The cache that each layer needs."""
        specs: dict[int, KVCacheSpec] = {}
        for node in graph.nodes:
            if node.op != "attn.attention":
                continue
            layer = node.attrs["layer"]
            if not node.attrs["causal"]:
                raise refuse(self.name, node, "only causal attention can read a cache")
            if layer in specs:
                raise refuse(self.name, node, f"layer {layer} has two attentions; give each a layer of its own")
            specs[layer] = self._spec(node)
        return specs

    def _spec(self, node: Node) -> KVCacheSpec:
        k, v = (x.type for x in node.operands[1:])
        spec = AttentionSpec(
            block_size=self.block_size,
            kv_heads=int(k.shape[1]),
            head_dim=int(k.shape[2]),
            value_dim=int(v.shape[2]),
            dtype=k.dtype,
            reads=node.attrs["reads"],
        )
        try:
            _ = spec.tensors
        except IRError as error:
            raise refuse(self.name, node, str(error)) from None
        return spec

    def _paged(
        self,
        node: Node,
        operands: tuple[Value, ...],
        group: KVCacheGroup,
        inputs: dict[str, Value],
        written: dict[str, Value],
    ) -> Value:
        """Writes to the caches of the layer, whose tensors hold the operands behind the query, then attention."""
        b, layer = Builder(node.loc), node.attrs["layer"]
        names = [name for name, of, _ in group.caches() if of == layer]
        for name, x, tensor in zip(names, operands[1:], group.spec.tensors, strict=True):
            written[name] = b.op(
                "kv.write", inputs[name], x, inputs[group.slots], role=tensor.role, block_size=self.block_size
            )
        attrs = {key: node.attrs[key] for key in ("scale", "reads", "softcap", "layer")}
        return b.op(
            "attn.paged",
            operands[0],
            *(written[name] for name in names),
            inputs[group.block_tables],
            inputs[str(group.items)],
            kv_heads=operands[1].type.shape[1],
            block_size=self.block_size,
            **attrs,
        )


def _inputs(groups: tuple[KVCacheGroup, ...]) -> dict[str, Value]:
    """The graph inputs of the groups, by name."""
    found: dict[str, Value] = {}
    for group in groups:
        for role, name in (("slots", group.slots), ("block_tables", group.block_tables), ("attn_items", group.items)):
            found[str(name)] = step_input(role, name)
    for group in groups:
        found.update(
            (name, Builder().input(name, TensorType((NB, *t.shape), t.dtype))) for name, _, t in group.caches()
        )
    return found


def _is_index(value: Value) -> bool:
    return value.node.attrs["name"] in _INDEX_INPUTS and value.type.dtype is not DType.I32
