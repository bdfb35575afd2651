"""The graphs that come with the package are what a trace gives today."""

import pytest

from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.verifier import verify
from inferir.testing import capture_graphs
from inferir.testing.model_graphs import FAMILIES, graph_text, model_graph


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_what_a_trace_gives(family: str) -> None:
    """`python -m inferir.testing.capture_graphs` writes them anew."""
    assert capture_graphs.capture(family) == graph_text(family)


def test_single_precision_is_the_same_graph_in_another_type() -> None:
    for family in FAMILIES:
        graph = model_graph(family, DType.F32)
        verify(graph)
        assert not any(t.dtype is DType.BF16 for n in graph.nodes for t in n.types)


def test_an_unknown_family() -> None:
    with pytest.raises(InferirError, match="there is no graph of 'gpt9'; families are llama, "):
        model_graph("gpt9")
