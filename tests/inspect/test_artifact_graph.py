"""Sections of the kernel graph: layers in order, equal neighbours joined, values that skip regions drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from inferir.codegen.library import region_digest
from inferir.inspect.artifact_graph import RegionBox, Run, layer_of, read_sections
from inferir.inspect.artifact_svg import reuse, section_svg
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.graph.parser import parse_graph

BODY = """graph @{name}(%x0: f32[T, 8], %w0: f32[8]) -> (%2 as "y0") {{
    %2 = nn.rms_norm(%x0, %w0) {{eps={eps}, offset=0.0, round_before_weight=false}} : f32[T, 8]
  }}"""


def norms(modules: list[str], eps: dict[str, float] | None = None) -> str:
    """IR text of a chain of normalisations, one region per module."""
    lines, last = [], "%x"
    for number, module in enumerate(modules):
        body = BODY.format(name="rms_norm", eps=(eps or {}).get(module, 1e-6))
        lines.append(f'  %w{number} = core.weight {{name="{module}.weight"}} : f32[8]')
        attrs = f'{{anchor="rowwise", body={body}, name="rms_norm"}}'
        lines.append(f'  %v{number} = kernel.region({last}, %w{number}) {attrs} : f32[T, 8] @ "{module}:aten.mul"')
        last = f"%v{number}"
    text = "\n".join(lines)
    return f'graph @g(%x: f32[T, 8]) -> ({last} as "y") {{\n{text}\n}}\n'


def titles(runs: list[Run]) -> list[str]:
    return [run.title for run in runs]


@pytest.mark.parametrize(
    ("module", "layer"), [("model.layers.3.mlp", 3), ("h.0", 0), ("model.norm", None), ("", None), ("model.h2.x", None)]
)
def test_layer_of(module: str, layer: int | None) -> None:
    assert layer_of(module) == layer


def test_equal_layers_are_joined() -> None:
    modules = ["model.embed", *(f"model.layers.{i}.norm" for i in range(5)), "model.norm"]
    runs = read_sections(norms(modules), {})
    assert titles(runs) == ["rms_norm", "layers 0–4: 5 times the same", "rms_norm"]
    assert [s.layer for s in runs[1].sections] == [0, 1, 2, 3, 4]


def test_a_different_layer_stands_alone() -> None:
    modules = [f"layers.{i}.norm" for i in range(5)]
    runs = read_sections(norms(modules, {"layers.2.norm": 1e-3}), {})
    # The first layer reads the graph's input, the others a region of the layer before.
    assert titles(runs) == ["layer 0", "layer 1", "layer 2", "layers 3–4: 2 times the same"]


def test_regions_know_ops_weights_and_sources() -> None:
    (run,) = read_sections(norms(["layers.0.a", "layers.0.b"]), {})
    first, second = run.sections[0].regions
    assert (first.ops, first.weights, first.results) == (("nn.rms_norm",), ("layers.0.a.weight",), ("f32[T, 8]",))
    assert (first.sources, first.outside) == ((), False)
    assert (second.sources, second.outside) == ((0,), False)


def test_kernels_are_found_by_region(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    bucket = manifest.buckets[0]
    kernels: dict[str, tuple[str, ...]] = {}
    for k in bucket.kernels:
        kernels[k.region] = (*kernels.get(k.region, ()), k.name)
    text = (tiny_artifact / "ir" / "kernels.txt").read_text()
    runs = read_sections(text, kernels)
    boxes = [box for run in runs for section in run.sections for box in section.regions]
    regions = [n for n in parse_graph(text).nodes if n.op == "kernel.region"]
    assert [b.kernels for b in boxes] == [kernels[region_digest(r)] for r in regions]
    called = [bucket.kernels[call.kernel].name for call in bucket.program]
    assert called == [name for box in boxes for name in box.kernels]
    assert any(len(box.kernels) == 2 for box in boxes)  # attention
    assert {s.layer for run in runs for s in run.sections} == {None, 0, 1}


def box(
    name: str, sources: tuple[int, ...] = (), outside: bool = False, ops: tuple[str, ...] = ("nn.rms_norm",)
) -> RegionBox:
    return RegionBox(
        name, "rowwise", "d", (f"k_{name}",), "m", ops, ("a.b.c.d.weight",), ("f32[T, 8]",), sources, outside
    )


def test_the_drawing_has_a_box_per_region_and_an_arrow_per_value() -> None:
    regions = [box("a", outside=True), box("b", (0,)), box("c", (0, 1), outside=True)]
    svg = ET.fromstring(section_svg(regions, "s"))
    assert len(list(svg.iter("rect"))) == 3
    assert [t.text for t in svg.iter("text") if t.get("class") == "name"] == ["k_a", "k_b", "k_c"]
    # a from outside, a→b, a→c, b→c, c from outside, and the way out.
    assert len(list(svg.iter("path"))) == 6
    height = float(svg.attrib["height"])
    for rect in svg.iter("rect"):
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) < height
    copy = ET.fromstring(reuse(regions, "s"))
    assert (copy.attrib["height"], copy.find("use").attrib["href"]) == (svg.attrib["height"], "#s")  # type: ignore[union-attr]


def test_a_drawing_names_no_layer() -> None:
    region = RegionBox("a", "rowwise", "d", ("k0_a",), "m.3.mlp", (), ("m.layers.3.mlp.w",), (), (), False)
    text = "".join(ET.fromstring(section_svg([region], "s")).itertext())
    assert "m.*.mlp" in text
    assert "weights: mlp.w" in text
    assert not re.search(r"\.\d", text)


def test_long_lines_are_wrapped() -> None:
    svg = ET.fromstring(section_svg([box("a", ops=("tensor.add",) * 30 + ("x" * 200,))], "s"))
    lines = [t.text or "" for t in svg.iter("text")]
    assert len(lines) > 8
    assert all(len(line) <= 70 for line in lines)
