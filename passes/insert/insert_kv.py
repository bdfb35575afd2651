"""insert-kv: captured attention over one sequence becomes writes to, and attention over, the paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferir.ir.contract.split_kv import ITEM_WIDTH
from inferir.ir.errors import IRError
from inferir.ir.graph.dims import MB, A, S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.kv import cache_type
from inferir.passes.context import PAGED, POSITIONS_TABULATED, TOKEN_MAJOR, refuse
from inferir.passes.rebuild import Rebuilder

_GATHERS = ("tensor.embedding", "tensor.gather_rows")
_INDEX_INPUTS = ("ids", "positions")


@dataclass(frozen=True)
class InsertKv:
    """Adds inputs `slots` [T], `block_tables` [S, MB], `attn_items` [A, 6] (i32) and `kcache.i`, `vcache.i` per layer;
    keys and values are written to the caches, which become outputs, and attention reads them. `ids` and `positions`
    become i32. Scale, window and softcap of every layer are kept.
    """

    block_size: int

    name: ClassVar[str] = "insert-kv"
    why: ClassVar[str] = "serving keeps keys and values of earlier steps in blocks"
    requires: ClassVar[frozenset[str]] = frozenset({TOKEN_MAJOR, POSITIONS_TABULATED})
    ensures: ClassVar[frozenset[str]] = frozenset({PAGED})

    def run(self, graph: Graph) -> Graph:
        b = Builder()
        indices = {
            v: b.input(v.node.attrs["name"], TensorType(v.type.shape, DType.I32), v.node.loc)
            for v in graph.inputs
            if _is_index(v)
        }
        slots = b.input("slots", TensorType((T,), DType.I32))
        tables = b.input("block_tables", TensorType((S, MB), DType.I32))
        items = b.input("attn_items", TensorType((A, ITEM_WIDTH), DType.I32))
        caches: dict[str, Value] = {}
        written: dict[str, Value] = {}
        walk = Rebuilder(graph, indices)

        def visit(node: Node, operands: tuple[Value, ...]) -> Value | tuple[Value, ...] | None:
            if node.op == "attn.attention":
                return attention(node, operands)
            if any(v in indices for v in node.operands) and node.op not in _GATHERS:
                wide = [
                    Builder(node.loc).op("tensor.cast", new, dtype=old.type.dtype)
                    if old in indices and old.type != new.type
                    else new
                    for old, new in zip(node.operands, operands, strict=True)
                ]
                return Builder(node.loc).node(node.op, wide, node.attrs).results
            return None

        def attention(node: Node, operands: tuple[Value, ...]) -> Value:
            q, k, v = operands
            layer = node.attrs["layer"]
            if not node.attrs["causal"]:
                raise refuse(self.name, node, "only causal attention can read a cache")
            b = Builder(node.loc)
            for role, x in (("k", k), ("v", v)):
                name = f"{role}cache.{layer}"
                if name in caches:
                    raise refuse(self.name, node, f"layer {layer} has two attentions; give each a layer of its own")
                heads, size = int(x.type.shape[1]), int(x.type.shape[2])
                try:
                    kind = cache_type(role, heads, size, self.block_size, x.type.dtype)
                except IRError as error:
                    raise refuse(self.name, node, str(error)) from None
                caches[name] = b.input(name, kind)
                written[name] = b.op("kv.write", caches[name], x, slots, role=role, block_size=self.block_size)
            attrs = {key: node.attrs[key] for key in ("scale", "window", "softcap", "layer")}
            stores = (written[f"kcache.{layer}"], written[f"vcache.{layer}"])
            return b.op(
                "attn.paged", q, *stores, tables, items, kv_heads=k.type.shape[1], block_size=self.block_size, **attrs
            )

        walk.run(visit)
        return walk.graph_with((slots, tables, items, *caches.values()), written)


def _is_index(value: Value) -> bool:
    return value.node.attrs["name"] in _INDEX_INPUTS and value.type.dtype is not DType.I32
