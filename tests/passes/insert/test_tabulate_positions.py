"""tabulate-positions: sines and cosines become rows of a table over all positions."""

import torch

from inferir.ir.graph.graph import Graph
from inferir.ir.graph.parser import parse_graph
from inferir.passes.insert.tabulate_positions import TabulatePositions

ROTARY = """graph @g(%positions: i32[T], %x: f32[T, 4]) -> (%10 as "y", %9 as "z") {
  %1 = core.weight {name="freq"} : f32[2]
  %2 = tensor.view(%positions) {shape=(T, 1)} : i32[T, 1]
  %3 = tensor.cast(%2) {dtype=f32} : f32[T, 1]
  %4 = tensor.mul(%3, %1) : f32[T, 2]
  %5 = tensor.cat(%4, %4) {dim=1} : f32[T, 4]
  %6 = tensor.cos(%5) : f32[T, 4]
  %7 = tensor.mul(%x, %6) : f32[T, 4]
  %8 = tensor.view(%6) {shape=(T, 2, 2)} : f32[T, 2, 2]
  %9 = tensor.neg(%8) : f32[T, 2, 2]
  %10 = tensor.add(%7, %x) : f32[T, 4]
}"""


def test_golden(golden) -> None:
    after = """graph @g(%positions: i32[T], %x: f32[T, 4]) -> (%11 as "y", %15 as "z") {
      %1 = tensor.arange {dtype=i32, start=0, step=1, stop=16} : i32[16]
      %2 = tensor.view(%1) {shape=(16, 1)} : i32[16, 1]
      %3 = tensor.cast(%2) {dtype=f32} : f32[16, 1]
      %4 = core.weight {name="freq"} : f32[2]
      %5 = tensor.mul(%3, %4) : f32[16, 2]
      %6 = tensor.cat(%5, %5) {dim=1} : f32[16, 4]
      %7 = tensor.cos(%6) : f32[16, 4]
      %8 = tensor.embedding(%7, %positions) : f32[T, 4]
      %9 = tensor.mul(%x, %8) : f32[T, 4]
      %11 = tensor.add(%9, %x) : f32[T, 4]
      %12 = tensor.view(%7) {shape=(16, 2, 2)} : f32[16, 2, 2]
      %13 = tensor.neg(%12) : f32[16, 2, 2]
      %15 = tensor.gather_rows(%13, %positions) : f32[T, 2, 2]
    }"""
    positions = torch.tensor([3, 0, 15, 7, 3], dtype=torch.int32)
    golden(TabulatePositions(16), ROTARY, after, positions=positions, freq=torch.tensor([1.0, 0.01]))


def test_a_plain_lookup_of_positions_stays() -> None:
    graph = parse_graph("""graph @g(%positions: i32[T]) -> (%2 as "y") {
      %1 = core.weight {name="table"} : f32[16, 4]
      %2 = tensor.embedding(%1, %positions) : f32[T, 4]
    }""")
    assert TabulatePositions(16).run(graph) is graph


def test_a_shifted_lookup_becomes_a_shifted_table(golden) -> None:
    before = """graph @g(%positions: i32[T]) -> (%4 as "y") {
      %1 = core.weight {name="table"} : f32[18, 4]
      %2 = core.scalar {value=2} : i64[]
      %3 = tensor.add(%positions, %2) : i32[T]
      %4 = tensor.embedding(%1, %3) : f32[T, 4]
    }"""
    after = """graph @g(%positions: i32[T]) -> (%6 as "y") {
      %1 = core.weight {name="table"} : f32[18, 4]
      %2 = tensor.arange {dtype=i32, start=0, step=1, stop=16} : i32[16]
      %3 = core.scalar {value=2} : i64[]
      %4 = tensor.add(%2, %3) : i32[16]
      %5 = tensor.embedding(%1, %4) : f32[16, 4]
      %6 = tensor.embedding(%5, %positions) : f32[T, 4]
    }"""
    golden(TabulatePositions(16), before, after)


def test_layers_share_a_table_through_their_views() -> None:
    graph = parse_graph("""graph @g(%positions: i32[T], %x: f32[T, 1, 4]) -> (%5 as "y", %6 as "z") {
      %1 = tensor.cast(%positions) {dtype=f32} : f32[T]
      %2 = tensor.sin(%1) : f32[T]
      %3 = tensor.view(%2) {shape=(T, 1, 1)} : f32[T, 1, 1]
      %4 = tensor.view(%2) {shape=(T, 1, 1)} : f32[T, 1, 1]
      %5 = tensor.mul(%x, %3) : f32[T, 1, 4]
      %6 = tensor.add(%x, %4) : f32[T, 1, 4]
    }""")
    after = TabulatePositions(8).run(graph)
    assert [n.op for n in after.nodes].count("tensor.gather_rows") == 1


def test_what_depends_on_tokens_too_is_left(golden) -> None:
    before = """graph @g(%positions: i32[T], %ids: i32[T]) -> (%1 as "y") {
      %1 = tensor.add(%positions, %ids) : i32[T]
    }"""
    golden(TabulatePositions(8), before, before)


def test_a_graph_without_positions_is_returned_as_it_is() -> None:
    graph: Graph = parse_graph("""graph @g(%ids: i32[T]) -> (%1 as "y") {
      %1 = tensor.neg(%ids) : i32[T]
    }""")
    assert TabulatePositions(8).run(graph) is graph
