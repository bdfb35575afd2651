"""Nobody but the op definitions keeps tables of ops: what a table would say is a fact, and stands on the op."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferir.ir.graph.registry import all_ops

ROOT = Path(__file__).parents[3]
FOLDERS = ("passes", "codegen", "frontend", "runtime", "server", "src/inferir", "ir/graph", "ir/contract")
OWN_TABLES = Path("src/inferir/testing")
"""Holds what PyTorch makes of each op, which says nothing if it is taken from the op itself."""
OPS = frozenset(all_ops())
ALLOWED = {
    "passes/canonicalise/canonicalise.py": "one rewrite rule per op, each for that op alone",
    "passes/insert/ragged_tokens.py": "one rule per op that changes shapes, each for that op alone",
    "passes/recognise/recognise_rms_norm.py": "the last op of what is recognised",
    "codegen/lower/evaluate.py": "one form per op that joins values or has none, in the one walk over inner graphs",
    "codegen/triton/emitter.py": "the backend's start values of reductions",
    "codegen/lower/views.py": "how each view moves the index: the one walk over inner graphs",
}


def files() -> list[Path]:
    found = (p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py")))
    kept = (p for p in found if OWN_TABLES not in p.relative_to(ROOT).parents)
    return sorted({p for p in kept if not any(q.is_symlink() for q in p.parents)})


def is_op(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in OPS


def _compared(node: ast.BoolOp) -> list[ast.AST | None]:
    """What one expression is compared with, that which is compared most often."""
    by_subject: dict[str, list[ast.AST | None]] = {}
    for part in node.values:
        if isinstance(part, ast.Compare):
            by_subject.setdefault(ast.dump(part.left), []).extend(part.comparators)
    return max(by_subject.values(), key=len, default=[])


def tables(source: str) -> Iterator[int]:
    """Lines with a literal collection of two or more ops, or with a chain of comparisons with two or more."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            members: list[ast.AST | None] = [*node.keys, *node.values]
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            members = [*node.elts]
        elif isinstance(node, ast.BoolOp):
            members = _compared(node)
        elif isinstance(node, ast.MatchOr):
            members = [p.value for p in node.patterns if isinstance(p, ast.MatchValue)]
        else:
            continue
        if sum(map(is_op, members)) > 1:
            yield node.lineno


def test_there_is_no_table_of_ops_elsewhere() -> None:
    found = {str(p.relative_to(ROOT)): list(tables(p.read_text())) for p in files()}
    found = {name: lines for name, lines in found.items() if lines}
    assert {n: lines for n, lines in found.items() if n not in ALLOWED} == {}


@pytest.mark.parametrize(
    "source",
    [
        'X = {"tensor.add", "tensor.mul"}',
        'X = frozenset(("tensor.add", "tensor.mul"))',
        'X = {"tensor.add": 0, "tensor.mul": 1}',
        'X = {0: "tensor.add", 1: "tensor.mul"}',
        'def f(n): return n.op in ["tensor.add", "nn.softcap"]',
        'def f(n): return n.op == "tensor.add" or n.op == "nn.softcap"',
        'def f(n): return n.op != "tensor.add" and n.op != "nn.softcap"',
    ],
)
def test_tables_are_found(source: str) -> None:
    assert list(tables(source)) == [1]


@pytest.mark.parametrize(
    "source",
    ['X = ("tensor.add", 1)', 'X = {"a", "b"}', 'def f(n): return n.op == "tensor.add" and n.x == "core.input"'],
)
def test_what_is_no_table_is_not_found(source: str) -> None:
    assert list(tables(source)) == []
