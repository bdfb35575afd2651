"""`check_pass`: every pass of the pipeline keeps to it, and planted faults are found in small graphs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from inferir.ir.errors import PassError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import transform
from inferir.passes.context import PAGED, Pass, PassOptions
from inferir.passes.pipeline import pass_names
from inferir.passes.plugin_passes import AddedPass
from inferir.testing import CheckFailedError, check_pass
from inferir.testing.model_graphs import FAMILIES, model_graph

SOME = ("llama", "gemma2")
SINGLE = ("llama", "qwen2", "gemma2", "phi", "gpt2", "granite")
HALF = tuple(family for family in FAMILIES if family not in SINGLE)
ROUND_ELSEWHERE = {"merge-gate-up", "insert-kv", "gather-logit-rows", "pack-weights", "elide-roundings"}
"""Passes after which sums are taken in another order, of the same terms."""


@pytest.mark.parametrize("name", pass_names())
def test_every_pass_of_the_pipeline(name: str) -> None:
    report = check_pass(
        name, dtypes=[DType.F32], examples=10, families=SINGLE, exact=name not in ROUND_ELSEWHERE, must_change=False
    )
    half = check_pass(name, dtypes=[DType.BF16], examples=10, families=HALF, must_change=False)
    assert report.changed or half.changed, "no graph has what the pass looks for"
    assert report.refused == half.refused == 0


def _nodes(graph: Graph | None) -> list[Node]:
    assert graph is not None
    return [n for n in graph.nodes if not opdef(n.op).source]


@dataclass(frozen=True)
class DropsAdd(Pass):
    """Takes every sum for its first operand."""

    name = "drops-add"
    why = "a planted fault"

    def run(self, graph: Graph) -> Graph:
        return transform(graph, lambda node, operands: operands[0] if node.op == "tensor.add" else None)


def test_a_pass_that_drops_an_add_is_found_in_a_graph_of_one_add() -> None:
    with pytest.raises(CheckFailedError, match="drops-add changes what the graph computes") as found:
        check_pass(DropsAdd())
    assert [n.op for n in _nodes(found.value.graph)] == ["tensor.add"]
    text = str(found.value)
    assert all(part in text for part in ("instead of", "sequence a, token 0", "seed:", "before:", "after:", "graph @"))


def test_a_fault_in_a_model_is_found_in_a_small_part_of_it() -> None:
    with pytest.raises(CheckFailedError, match="a part of the graph of llama in bf16") as found:
        check_pass(DropsAdd(), families=["llama"], dtypes=[DType.BF16], examples=0)
    assert len(_nodes(found.value.graph)) <= 4


@dataclass(frozen=True)
class WrongRounding(Pass):
    """Multiplies in another type."""

    name = "wrong-rounding"
    why = "a planted fault"

    def run(self, graph: Graph) -> Graph:
        def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node.op != "tensor.tanh" or node.types[0].dtype is not DType.F32:
                return None
            b = Builder(node.loc)
            half = b.op("tensor.cast", operands[0], dtype=DType.BF16)
            return b.op("tensor.cast", b.op("tensor.tanh", half), dtype=DType.F32)

        return transform(graph, visit)


def test_numbers_that_are_a_little_off_are_found() -> None:
    with pytest.raises(CheckFailedError, match="changes what the graph computes") as found:
        check_pass(WrongRounding(), phase="recognise")
    assert len(_nodes(found.value.graph)) <= 4


@dataclass(frozen=True)
class AddsZero(Pass):
    """Never done: every run adds something."""

    name = "adds-zero"
    why = "a planted fault"

    def run(self, graph: Graph) -> Graph:
        b = Builder()
        out = b.op("tensor.add", graph.output("logits"), b.scalar(0.0))
        outputs = tuple(out if n == "logits" else v for n, v in zip(graph.output_names, graph.outputs, strict=True))
        return Graph(graph.inputs, outputs, graph.output_names, graph.name)


@dataclass(frozen=True)
class AddsZeroOnce(AddsZero):
    name = "adds-zero-once"
    idempotent = False


def test_a_pass_must_be_done_after_one_run_unless_it_says_otherwise() -> None:
    with pytest.raises(CheckFailedError, match="changes its own result when it runs again"):
        check_pass(AddsZero(), families=SOME, examples=5)
    assert check_pass(AddsZeroOnce(), families=SOME, examples=5).changed == 2 * 2 + 2 * 5


class Alternates(Pass):
    """Does something every second time."""

    name = "alternates"
    why = "a planted fault"

    def __init__(self) -> None:
        self.runs = 0

    def run(self, graph: Graph) -> Graph:
        self.runs += 1
        return AddsZero().run(graph) if self.runs % 2 else graph


def test_a_pass_must_do_the_same_every_time() -> None:
    with pytest.raises(CheckFailedError, match="makes another graph of the same text the second time"):
        check_pass(Alternates(), families=SOME, examples=3)


class Stale(Pass):
    """Leaves types that are not those of the ops."""

    name = "stale"
    why = "a planted fault"

    def run(self, graph: Graph) -> Graph:
        def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node.op != "tensor.neg":
                return None
            return Node("tensor.lt", (operands[0], operands[0]), node.attrs, node.types, node.loc).result

        return transform(graph, visit)


def test_a_broken_graph_is_found_by_the_verifier() -> None:
    with pytest.raises(CheckFailedError, match="stale left a broken graph"):
        check_pass(Stale(), families=SOME)


@dataclass(frozen=True)
class Promises(Pass):
    name = "promises"
    why = "a planted fault"
    requires = frozenset({PAGED})
    ensures = frozenset({"packed"})

    def run(self, graph: Graph) -> Graph:
        return graph


def test_promises_are_checked_where_the_pass_runs() -> None:
    with pytest.raises(CheckFailedError, match=r"promised a graph that is packed, but there is still a tensor\.linear"):
        check_pass(Promises(), families=SOME)
    with pytest.raises(CheckFailedError, match="promises requires a graph that is paged, which no pass before it"):
        check_pass(Promises(), phase="recognise", families=SOME)
    assert check_pass(Promises(), phase="lay out", families=SOME, examples=3, must_change=False).changed == 0


def test_a_pass_that_changes_nothing_is_not_said_to_be_right() -> None:
    with pytest.raises(CheckFailedError, match="promises changed none of"):
        check_pass(Promises(), phase="lay out", families=SOME, examples=3)
    with pytest.raises(CheckFailedError, match="drops-add changed none of 0 graphs, so nothing was checked"):
        check_pass(DropsAdd(), graphs=[], examples=0)


class Refuses(Pass):
    name = "refuses"
    why = "a planted fault"

    def run(self, graph: Graph) -> Graph:
        raise PassError("refuses: no")


class Crashes(Pass):
    name = "crashes"
    why = "a planted fault"

    def run(self, graph: Graph) -> Graph:
        raise KeyError("x")


def test_a_pass_may_refuse_random_graphs_but_no_model_and_must_not_crash() -> None:
    with pytest.raises(CheckFailedError, match="refuses a graph that it must handle: refuses: no"):
        check_pass(Refuses(), families=SOME, examples=3)
    with pytest.raises(CheckFailedError, match="crashes raised KeyError"):
        check_pass(Crashes(), families=SOME, examples=3)


def test_an_added_pass_runs_at_the_end_of_its_phase_with_its_options() -> None:
    made: list[PassOptions] = []

    def make(options: PassOptions, context: object) -> Pass:
        made.append(options)
        return DropsAdd()

    with pytest.raises(CheckFailedError, match="drops-add changes"):
        check_pass(AddedPass("merge", 3, make))
    assert {o.opt_level for o in made} == {3}
    with pytest.raises(PassError, match="there is no phase 'middle'"):
        check_pass(DropsAdd(), phase="middle")


def test_own_graphs_and_what_changed_is_shown(capsys: pytest.CaptureFixture[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    seen: list[str] = []
    graph = model_graph("gemma2")
    file = tmp_path / "mine.txt"
    from inferir.ir.graph.printer import print_graph

    file.write_text(print_graph(graph))
    report = check_pass(
        "recognise-softcap", graphs=[graph, print_graph(graph), file], examples=0, show=lambda n, *_: seen.append(n)
    )
    assert report.changed == 3
    assert seen == ["graph 0 (captured)", "graph 1", str(file)]
    check_pass("recognise-softcap", graphs=[graph], examples=0, show=True)
    shown = capsys.readouterr().out
    assert "before:\ngraph @captured" in shown
    assert "nn.softcap" in shown.split("after:")[1]


def test_the_same_seed_finds_the_same() -> None:
    messages = []
    for _ in range(2):
        with pytest.raises(CheckFailedError) as found:
            check_pass(DropsAdd(), seed=7)
        messages.append(str(found.value))
    assert messages[0] == messages[1]


def test_families_have_what_they_are_there_for() -> None:
    text = {name: {n.op for n in model_graph(name).nodes} for name in FAMILIES}
    assert "tensor.tanh" in text["gemma2"]
    assert "nn.layer_norm" in text["gpt_neox"]
