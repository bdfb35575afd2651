"""Graphs that a caller brings: as objects, as IR text, or as the path of a text file or a model folder."""

from __future__ import annotations

from pathlib import Path

from inferir.ir.graph.graph import Graph
from inferir.ir.graph.printer import print_graph


def named_text(graph: Graph | str | Path, number: int) -> tuple[str, str]:
    """A name for messages, and the IR text of a captured graph. A folder is a model, which is traced.

    Raises `InferirError` for a file that cannot be read or a model that cannot be traced.
    """
    if isinstance(graph, Graph):
        return f"graph {number} ({graph.name})", print_graph(graph)
    if isinstance(graph, str) and graph.lstrip().startswith("graph "):
        return f"graph {number}", graph
    path = Path(graph)
    if path.is_dir():
        from inferir.frontend.capture.trace import trace
        from inferir.frontend.source.model_source import load_source

        return str(path), print_graph(trace(load_source(str(path))).graph)
    from inferir.ir.errors import IRError

    try:
        return str(path), path.read_text(encoding="utf-8")
    except OSError as error:
        raise IRError(f"{path}: cannot be read: {error.strerror}") from None
