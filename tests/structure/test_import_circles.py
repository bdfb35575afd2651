"""No module needs, over others, itself: what registers goes into a table that knows nobody."""

import networkx as nx
import pytest

grimp = pytest.importorskip("grimp")


def test_no_module_imports_itself_over_others() -> None:
    graph = grimp.build_graph("inferir", exclude_type_checking_imports=True)
    imports = nx.DiGraph((m, n) for m in graph.modules for n in graph.find_modules_directly_imported_by(m))
    assert imports.number_of_edges() > 1000
    assert [sorted(c) for c in nx.strongly_connected_components(imports) if len(c) > 1] == []
