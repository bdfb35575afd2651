"""The driver: order, checks, dumps, refused options."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from small_limits import limits

from inferir.ir.errors import PassError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.types import TensorType
from inferir.passes.context import PACKED, RAGGED, PassOptions
from inferir.passes.manager import run_passes, run_pipeline

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Step:
    """A pass made of what the test says."""

    result: Graph | None = None
    requires: frozenset[str] = NONE  # type: ignore[misc]
    ensures: frozenset[str] = NONE  # type: ignore[misc]
    seen: list[Graph] = field(default_factory=list)

    name: ClassVar[str] = "step"
    why: ClassVar[str] = "for this test"

    def run(self, graph: Graph) -> Graph:
        self.seen.append(graph)
        return self.result or graph


GRAPH = parse_graph('graph @g(%x: f32[T, 4]) -> (%1 as "y") {\n %1 = tensor.exp(%x) : f32[T, 4]\n}')
OTHER = parse_graph('graph @g(%x: f32[4, T]) -> (%1 as "y") {\n %1 = tensor.exp(%x) : f32[4, T]\n}')


def broken() -> Graph:
    x = GRAPH.inputs[0]
    return Graph((x,), Node("tensor.exp", (x,), Attrs(), (TensorType((T, 5), DType.F32),)).results, ("y",))


def test_passes_run_in_order_and_are_recorded() -> None:
    first, second = Step(OTHER), Step()
    graph, records = run_passes(GRAPH, [first, second])
    assert graph is OTHER
    assert second.seen == [OTHER]
    assert [(r.name, r.changed) for r in records] == [("step", True), ("step", False)]
    assert all(r.seconds >= 0 for r in records)


def test_a_missing_requirement_is_named() -> None:
    with pytest.raises(PassError, match="step requires a graph that is packed, which no pass before it ensures"):
        run_passes(GRAPH, [Step(requires=frozenset({PACKED}))])
    run_passes(GRAPH, [Step(ensures=frozenset({PACKED})), Step(requires=frozenset({PACKED}))])


def test_a_broken_graph_is_blamed_on_its_pass() -> None:
    with pytest.raises(PassError, match=r"step left a broken graph: .*tensor.exp"):
        run_passes(GRAPH, [Step(broken())])


def test_a_broken_promise_is_blamed_on_its_pass() -> None:
    with pytest.raises(PassError, match=r"step promised a graph that is ragged, but core.input has type f32\[4, T\]"):
        run_passes(GRAPH, [Step(OTHER, ensures=frozenset({RAGGED}))])


def test_graphs_are_shown_and_dumped(tmp_path) -> None:
    shown = []
    run_passes(
        GRAPH,
        [Step(), Step(OTHER)],
        print_after=lambda name, graph: shown.append((name, graph)),
        dump_dir=tmp_path / "ir",
    )
    assert shown == [("step", GRAPH), ("step", OTHER)]
    files = sorted((tmp_path / "ir").iterdir())
    assert [f.name for f in files] == ["00-input.txt", "01-step.txt", "02-step.txt"]
    assert parse_graph(files[2].read_text()).structural_hash() == OTHER.structural_hash()


def test_dumps_of_the_pipeline_parse_back(tiny, tmp_path) -> None:
    result = run_pipeline(
        tiny(layers=1).graph, None, PassOptions(limits=limits(max_model_len=16, block_size=4)), dump_dir=tmp_path
    )
    last = sorted(tmp_path.iterdir())[-1]
    assert last.name == "22-elide-roundings.txt"
    assert parse_graph(last.read_text()).structural_hash() == result.graph.structural_hash()


def test_disabled_passes_do_not_run(tiny) -> None:
    graph = tiny(layers=1).graph
    result = run_pipeline(graph, None, PassOptions(disabled=frozenset({"merge-qkv", "recognise-rms-norm"})))
    assert "merge-qkv" not in {r.name for r in result.records}
    names = [op.region.attrs["name"] for op in result.plan.ops]
    assert names.count("linear") == 4
    assert not any("rms_norm" in name for name in names)


def test_a_needed_pass_cannot_be_disabled(tiny) -> None:
    with pytest.raises(PassError, match="insert-argmax requires a graph that is packed"):
        run_pipeline(tiny(layers=1).graph, None, PassOptions(disabled=frozenset({"pack-weights"})))


def test_unknown_passes_are_refused(tiny) -> None:
    with pytest.raises(PassError, match="no pass named 'merge-kqv'; passes are canonicalise, "):
        run_pipeline(tiny(layers=1).graph, None, PassOptions(disabled=frozenset({"merge-kqv"})))


def test_the_checkpoint_must_hold_the_weights(tiny) -> None:
    graph = tiny(layers=1).graph
    types = {name: value.type for name, value in graph.weights().items()}
    run_pipeline(graph, types, PassOptions())
    with pytest.raises(PassError, match=r"weight 'norm' is f32\[16\] in the graph and missing in the checkpoint"):
        run_pipeline(graph, {k: v for k, v in types.items() if k != "norm"}, PassOptions())
    with pytest.raises(PassError, match=r"weight 'norm' is f32\[16\] in the graph and f32\[4\] in the checkpoint"):
        run_pipeline(graph, {**types, "norm": TensorType((4,), DType.F32)}, PassOptions())


def test_wrong_options_are_refused() -> None:
    with pytest.raises(PassError, match="opt_level is 4, not"):
        PassOptions(opt_level=4)
