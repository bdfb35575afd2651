"""Regions of every kind with operands, what their kernels' results are compared with, and their smallest parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from inferir.codegen.library import region_digest
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.registry import ROWWISE, opdef
from inferir.ir.graph.types import TensorType
from inferir.testing.compare import compare
from inferir.testing.kernel_runs import RegionRun
from inferir.testing.model_graphs import graph_text
from inferir.testing.row_cases import ALL, case_of, difference
from inferir.testing.stage import KERNEL_OPTIONS, stages
from inferir.testing.steps import operands_of
from inferir.testing.tensors import random_weight, with_transforms

if TYPE_CHECKING:
    import torch

FAMILIES = ("llama", "gemma2", "phi")
"""Models whose regions are taken: of all anchors, with epilogues of all kinds."""
DTYPES = (DType.F32, DType.BF16)
BOUNDS = {True: 2.0**-6, False: 2e-5}
"""Of results of products and attention in half precision or not, relative to the largest."""


def every_region() -> dict[str, RegionRun]:
    """Row-wise bodies and the regions of models, by name."""
    return {**row_regions(), **model_regions()}


@cache
def row_regions() -> Mapping[str, RegionRun]:
    """All row-wise bodies, by name and type."""
    return {f"{n} in {d.value}": case_of(n, d).run() for n in sorted(ALL) for d in (*DTYPES, DType.F16)}


@cache
def model_regions(families: Sequence[str] = FAMILIES) -> Mapping[str, RegionRun]:
    """Distinct regions of kernel graphs, with what they are given in a step."""
    found: dict[str, RegionRun] = {}
    for dtype in DTYPES:
        for family in families:
            last = max(stages(graph_text(family, dtype), KERNEL_OPTIONS).items())[1]
            transforms = last.context.transforms
            sources = {n: v for g in (last.graph, *transforms.values()) for n, v in g.weights().items()}
            weights = {n: random_weight(n, v.type) for n, v in sources.items() if n not in transforms}
            given = operands_of(last.graph, with_transforms(weights, transforms), KERNEL_OPTIONS.limits.block_size)
            known = {region_digest(r.region) for r in found.values()}
            for node, operands in given.items():
                if region_digest(node) not in known:
                    known.add(region_digest(node))
                    number = sum(n.startswith(f"{node.attrs['name']} of") for n in found)
                    found[f"{node.attrs['name']} of {family} in {dtype.value}, {number}"] = RegionRun(node, operands)
    return found


def difference_of(name: str, case: RegionRun, got: Sequence[torch.Tensor], flushes: bool) -> str | None:
    """What is wrong with the results of a region's kernel, with the operands at that place."""
    body_name = name.rpartition(" in ")[0]
    for number, (result, want) in enumerate(zip(got, case.wanted(), strict=True)):
        if body_name in ALL:
            found = difference(body_name, result, want, flushes)
        elif result.dtype != want.dtype:
            found = f"a result is {result.dtype}, not {want.dtype}"
        elif not want.dtype.is_floating_point:
            found = compare(result, want)
        else:
            half = any(v.type.dtype is DType.BF16 for v in case.body.inputs)
            scale = float(want.double().nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0.0
            found = compare(result, want, BOUNDS[half], scale)
        if found is not None:
            return f"result {number}: {found}{_operands_at(case, found)}"
    return None


def _operands_at(case: RegionRun, found: Any) -> str:
    """The operands at the place of a difference, where they have the shape of the result."""
    place = getattr(found, "place", None)
    if place is None:
        return ""
    out = []
    for value, tensor in zip(case.body.inputs, case.operands, strict=True):
        at = place[-tensor.dim() :] if tensor.dim() <= len(place) else ()
        if tensor.dim() and len(at) == tensor.dim() and all(i < n for i, n in zip(at, tensor.shape, strict=True)):
            out.append(f"%{value.node.attrs['name']} = {tensor[at].item()!r}")
    return f"; {', '.join(out)}" if out else ""


def parts_of(case: RegionRun) -> list[RegionRun]:
    """Every op of a region, and every two of which one uses the other, as regions of their own with the operands that
    they have there; the smallest first.
    """
    values: dict[Value, Any] = dict(zip(case.body.inputs, case.operands, strict=True))

    def watch(node: Node, results: tuple[Any, ...]) -> None:
        values.update(zip(node.results, results, strict=True))

    inputs = dict(zip(case.body.input_names, case.operands, strict=True))
    interpret(case.body, inputs, observe=watch)
    nodes = [n for n in case.body.nodes if not opdef(n.op).source and n.operands]
    pairs = [(v.node, n) for n in nodes for v in dict.fromkeys(n.operands) if v.node in nodes]
    return [_alone(part, values) for part in [*((n,) for n in nodes), *pairs]]


def _alone(part: tuple[Node, ...], values: Mapping[Value, Any]) -> RegionRun:
    """Some ops, the last of which gives the result."""
    b = Builder(part[-1].loc)
    env: dict[Value, Value] = {}
    given: dict[Value, Any] = {}
    for node in part:
        for v in node.operands:
            if v.op == "core.scalar":
                env[v] = v
            elif v not in env:
                env[v] = b.input(f"x{len(given)}", TensorType(v.type.shape, v.type.dtype))
                given[env[v]] = values[v]
        env.update(zip(node.results, rebuild(node, tuple(env[v] for v in node.operands)).results, strict=True))
    inputs = tuple(given)
    body = Graph(inputs, tuple(env[r] for r in part[-1].results))
    anchor = next((opdef(n.op).anchor for n in part if opdef(n.op).anchor), ROWWISE)
    attrs = {"anchor": anchor, "body": body, "name": "_".join(opdef(n.op).short for n in part)}
    return RegionRun(b.node("kernel.region", inputs, attrs), list(given.values()))
