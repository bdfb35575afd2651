"""Writing a group of nodes as a `kernel.region`."""

from __future__ import annotations

from collections.abc import Mapping

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.step_inputs import STEP_INPUTS
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.graph import Builder, Graph, Node, Provenance, Value, rebuild
from inferir.ir.graph.registry import opdef
from inferir.passes.fuse.grouping import Group, Uses


def input_roles(kv: tuple[KVCacheGroup, ...]) -> dict[str, str]:
    """What bodies call the step's inputs, by name: the same for all layers and groups."""
    roles = {name: name for name in STEP_INPUTS}
    for group in kv:
        roles |= {group.block_tables: "block_tables", group.slots: "slots"}
        if group.items is not None:
            roles[group.items] = "attn_items"
        roles |= {name: f"{tensor.role}cache" for name, _, tensor in group.caches()}
    return roles


def region(
    group: Group, uses: Uses, outputs: list[Value], env: Mapping[Value, Value], roles: Mapping[str, str]
) -> dict[Value, Value]:
    """The new values for `outputs`, as results of one region whose operands come from `env`.

    The body is the same text for equal work in different layers: inputs are numbered (`x` activations, `w` weights) or
    have the name of their role in `roles`, and the layer number of attention is dropped.
    """
    body = _Body(uses, roles)
    for node in group.nodes:
        body.add(node)
    results = tuple(body.values[v] for v in outputs)
    name = region_name(group.nodes)
    graph = Graph(tuple(body.inputs.values()), results, tuple(f"y{i}" for i in range(len(results))), name)
    loc = Provenance.join(n.loc for n in group.nodes)
    operands = [env[v] for v in body.inputs]
    node = Builder(loc).node("kernel.region", operands, {"anchor": group.anchor, "body": graph, "name": name})
    return dict(zip(outputs, node.results, strict=True))


def region_name(nodes: list[Node]) -> str:
    """A short name from the ops: `linear_add`, `rms_norm`, `rotary_kv_write`."""
    ops = [opdef(n.op) for n in nodes]
    kinds = dict.fromkeys(op.short for op in [op for op in ops if not op.quiet] or ops)
    return "_".join(list(kinds)[:5])


class _Body:
    def __init__(self, uses: Uses, roles: Mapping[str, str]) -> None:
        self.uses = uses
        self.roles = roles
        self.values: dict[Value, Value] = {}
        self.inputs: dict[Value, Value] = {}
        self.counts = {"x": 0, "w": 0}

    def add(self, node: Node) -> None:
        """Copy a node of the group, its operands first."""
        attrs = node.attrs.replace(layer=0) if "layer" in node.attrs else node.attrs
        operands = tuple(self.value(v) for v in node.operands)
        if attrs is node.attrs:
            new = rebuild(node, operands)
        else:
            new = Builder(node.loc).node(node.op, operands, attrs)
        self.values.update(zip(node.results, new.results, strict=True))

    def value(self, value: Value) -> Value:
        if value not in self.values:
            node = value.node
            if node in self.uses.free:
                self.values[value] = rebuild(node, tuple(self.value(v) for v in node.operands)).result
            elif node.op == "core.scalar":
                self.values[value] = value
            else:
                new = Node("core.input", (), Attrs({"name": self._input_name(node)}), (value.type,), node.loc).result
                self.inputs[value] = self.values[value] = new
        return self.values[value]

    def _input_name(self, node: Node) -> str:
        if node.op == "core.input":
            role = self.roles.get(str(node.attrs["name"]))
            if role is not None and role not in {v.node.attrs["name"] for v in self.inputs.values()}:
                return role
        kind = "w" if node.op == "core.weight" else "x"
        self.counts[kind] += 1
        return f"{kind}{self.counts[kind] - 1}"
