"""The documentation is true: links resolve, examples run, and tables say what the code says."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferir.cli import command_failures as failures
from inferir.ir import errors
from inferir.ir.contract.target import TARGETS
from inferir.ir.errors import InferirError
from inferir.ir.graph.graph import attr_text, structural_text
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.registry import OpDef, all_ops
from inferir.ir.graph.verifier import verify
from inferir.passes import pipeline
from inferir.passes.context import PassContext, PassOptions
from inferir.passes.properties import CHECKS
from inferir.runtime.sampling.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS]

TUTORIAL = "extending.md"
"""The page whose files are written and run by a test of its own."""

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(
    r"(?:frontend|ir|passes|codegen|runtime|server|src|tests|benchmarks|docs)/(?:[\w./-]*(?:\.py|\.md|/))?"
)
SHOWN = ("avx2", "avx512f", "avx512bf16", "avx512vnni")  # features that the table of targets shows


def named(pages: list[Path]) -> Any:
    return pytest.mark.parametrize("page", pages, ids=[p.name for p in pages])


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of one language, without their indentation."""
    out = []
    for indent, kind, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == language:
            out.append("".join(line.removeprefix(indent) for line in text.splitlines(keepends=True)))
    return out


def table(page: str, *header: str) -> list[list[str]]:
    """Rows of all tables with that header, as cells."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells == list(header):
            inside = True
        elif inside and set(line) - set("|-: "):
            rows.append(cells)
    assert rows, f"{page} has no table with the columns {header}"
    return rows


def anchors(page: Path) -> set[str]:
    """Names under which headings can be linked to."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


# --- links and names --------------------------------------------------------------------------------------------------


def test_every_page_is_linked_from_the_index() -> None:
    linked = set(_LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    missing = [p.name for p in DOCS if p.name != "index.md" and p.name not in linked]
    assert not missing, f"docs/index.md has no link to {', '.join(missing)}"


@named(PAGES)
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, which has no such heading"


@named(DOCS)
def test_named_files_exist(page: Path) -> None:
    """A path in backticks that starts with one of the repository's folders is a file or folder."""
    for code in _CODE.findall(prose(page)):
        if _FILE.fullmatch(code):
            assert (ROOT / code).exists(), f"{page.name} names {code}"


# --- examples ---------------------------------------------------------------------------------------------------------


def example_pages() -> list[Path]:
    return [p for p in [ROOT / "README.md", *DOCS] if any(">>>" in b for b in blocks(p, "python"))]


@named(example_pages())
def test_examples(page: Path, request: pytest.FixtureRequest) -> None:
    """Examples give what the page shows; `MODEL` is the folder of a tiny model, `ART` an artifact made of it."""
    text = "\n".join(b for b in blocks(page, "python") if ">>>" in b)
    names: dict[str, Any] = {"__name__": "docs"}
    for name, fixture in (("MODEL", "tiny_model"), ("ART", "tiny_artifact")):
        if re.search(rf"\b{name}\b", text):
            names[name] = str(request.getfixturevalue(fixture))
    test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), 0)
    told: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=told.append)
    assert result.failed == 0, "".join(told)
    assert result.attempted > 0


def snippets() -> Iterator[Any]:
    for page in PAGES:
        for number, text in enumerate(b for b in blocks(page, "python") if ">>>" not in b):
            if page.name == TUTORIAL:
                continue
            yield pytest.param(text, id=f"{page.name}-{number}")


@pytest.mark.parametrize("text", [*snippets()])
def test_snippets_are_python_and_import_what_exists(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def graphs() -> Iterator[Any]:
    for page in DOCS:
        for number, text in enumerate(blocks(page, "ir")):
            yield pytest.param(text, id=f"{page.name}-{number}")


@pytest.mark.parametrize("text", [*graphs()])
def test_ir_text_is_real(text: str) -> None:
    graph = parse_graph(text)
    verify(graph)
    assert structural_text(parse_graph(print_graph(graph))) == structural_text(graph)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_pass_table() -> None:
    by_phase = pipeline.build_phases(PassOptions(opt_level=3), PassContext())
    phases = [phase for phase, own in by_phase.items() for _ in own]
    levels = [[p.name for p in pipeline.build_pipeline(PassOptions(opt_level=n), PassContext())] for n in range(4)]
    passes = pipeline.build_pipeline(PassOptions(opt_level=3), PassContext())
    rows = []
    for i, step in enumerate(passes):
        before = sum(p.name == step.name for p in passes[:i])
        first = next(n for n in range(4) if levels[n].count(step.name) > before)
        rows.append([phases[i], f"`{step.name}`", str(first), step.why])
    assert table("passes.md", "phase", "pass", "from level", "why") == rows


def test_property_table() -> None:
    ensured = {e: f"`{p.name}`" for p in pipeline.build_pipeline(PassOptions(), PassContext()) for e in p.ensures}
    rows = table("passes.md", "property", "ensured by", "meaning")
    assert {r[0].strip("`"): r[1] for r in rows} == {name: ensured[name] for name in CHECKS}


def operand_text(op: OpDef) -> str:
    low, high = (op.arity, op.arity) if isinstance(op.arity, int) else op.arity
    if high is None:
        return "any" if low == 0 else f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def attribute_text(op: OpDef) -> str:
    """`name` of every attribute, with its default behind an equals sign."""
    return " ".join(f"`{n}`" + (f"={attr_text(op.defaults[n])}" if n in op.defaults else "") for n in op.attrs)


def test_op_tables() -> None:
    """Every operation stands in a table, with operands and attributes; a heading names the dialect of short names."""
    dialect = ""
    found: dict[str, tuple[str, str]] = {}
    for line in (ROOT / "docs" / "ir.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            dialect = line.lstrip("# ")
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("| `") else []
        if len(cells) == 4:
            for name in _CODE.findall(cells[0]):
                full = name if "." in name else f"{dialect}.{name}"
                assert full not in found, f"{full} is listed twice"
                found[full] = (cells[1], cells[2])
    assert found == {name: (operand_text(op), attribute_text(op)) for name, op in all_ops().items()}


def subclasses(kind: type[InferirError]) -> Iterator[type[InferirError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def test_error_table() -> None:
    """All public errors, below what they derive from, with their exit status."""
    public = [e for e in (InferirError, *subclasses(InferirError)) if e.__module__ == errors.__name__]
    expected = {e.__name__: [e.__base__.__name__ if e.__base__ else "", str(e.exit_code)] for e in public}
    expected["InferirError"][0] = ""
    rows = table("errors.md", "error", "a kind of", "meaning", "exit status")
    assert {r[0].strip("`"): [r[1].strip("`"), r[3]] for r in rows} == expected
    assert all(r[2] for r in rows)


def test_exit_statuses() -> None:
    rows = {r[0] for r in table("errors.md", "status", "when")}
    assert {str(failures.INTERNAL), str(failures.INTERRUPTED), str(failures.BROKEN_PIPE), "0", "1", "2"} == rows


def test_target_table() -> None:
    rows = table("codegen.md", "target", "kind", "features", "backend")
    expected = {name: [t.kind, " ".join(f for f in t.features if f in SHOWN)] for name, t in TARGETS.items()}
    assert {r[0].strip("`"): r[1:3] for r in rows} == expected


def test_sampling_parameters_are_listed() -> None:
    rows = table("runtime.md", "parameter", "default", "meaning")
    listed = {n: r[1].strip("`") for r in rows for n in _CODE.findall(r[0])}
    fields = {f.name: repr(f.default) for f in dataclasses.fields(SamplingParams)}
    assert listed == fields
