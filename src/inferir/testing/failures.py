"""How a check says what it found, and what it needs to run."""

from __future__ import annotations

from collections.abc import Iterable

from inferir.ir.graph.graph import Graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.system.extras import require


class CheckFailedError(AssertionError):
    """A check found a fault. The message says what was checked, the smallest case that shows it, and by how much it is
    off; `graph` is that case, where it is a graph.
    """

    def __init__(self, message: str, graph: Graph | None = None) -> None:
        super().__init__(message)
        self.graph = graph


def failed(what: str, parts: Iterable[tuple[str, object]] = (), graph: Graph | None = None) -> CheckFailedError:
    """An error of a line that says what is wrong and of titled parts below it; graphs are shown as IR text."""
    lines = [what]
    for title, content in parts:
        text = print_graph(content) if isinstance(content, Graph) else str(content)
        lines += [f"{title}:", *(f"  {line}" for line in text.splitlines())]
    return CheckFailedError("\n".join(lines), graph)


def require_libraries(check: str) -> None:
    """Raises `MissingExtraError` naming a library that is not installed and the extra that brings it."""
    require(check, "testing")
    require(check, "compile")
