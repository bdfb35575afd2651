"""Import rules of other distributions: who has one, and what is said where one is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from plugin_distributions import Plugged

from inferir.frontend.capture import hooks
from inferir.frontend.capture.export import Exported, export
from inferir.frontend.capture.import_program import UnsupportedOperatorError, import_program
from inferir.frontend.capture.importer import Importer
from inferir.frontend.capture.plugin_rules import absent_rules, added_rule
from inferir.ir.errors import UntraceableError
from inferir.ir.graph.registry import DIALECTS
from inferir.ir.plugin_registry import PluginWarning
from inferir.testing.op_import import Small

CODE = """
from inferir.ir.graph.registry import Dialect
ACME = Dialect("acme", imports={"acme.twice.default": lambda imp, x: imp.op("tensor.add", x, x)})
OTHER = Dialect("other", imports=ACME.imports)
"""
TARGET = "acme.twice.default"


@pytest.fixture(scope="module")
def program() -> Exported:
    """The trace of a model that calls an operator of its own."""
    with torch.library._scoped_library("acme", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
        hooks.register()
        return export(Small(lambda module, x, positions: torch.ops.acme.twice(x)).eval().requires_grad_(False))


def importer() -> Importer:
    node: Any = SimpleNamespace(target=TARGET, meta={})
    return Importer(sympy.Symbol("s"), node=node)


def test_a_dialect_brings_a_rule(plugged: Plugged) -> None:
    plugged([DIALECTS], "acme", CODE, ops={"acme": "ACME"})
    imp = importer()
    assert added_rule(imp, TARGET) is not None
    assert added_rule(imp, "acme.thrice.default") is None
    assert imp.added == {TARGET: "acme"}
    assert absent_rules() == ""


def test_two_rules_for_one_operator_are_refused(plugged: Plugged) -> None:
    plugged([DIALECTS], "acme", CODE, ops={"acme": "ACME", "other": "OTHER"})
    with pytest.raises(
        UntraceableError, match=r"'acme' of acme 1\.5 and 'other' of acme 1\.5 both have an import rule"
    ):
        added_rule(importer(), TARGET)


def test_a_dialect_that_is_left_out_is_named(plugged: Plugged) -> None:
    plugged([DIALECTS], "acme", "import no_such_library", ops={"acme": "ACME"})
    with pytest.warns(PluginWarning, match="the dialect 'acme' of acme 1"):
        assert added_rule(importer(), TARGET) is None
    assert absent_rules().startswith("; the dialect 'acme' of acme 1.5 is left out: ModuleNotFoundError")


def test_a_model_with_the_operator_is_imported(plugged: Plugged, program: Exported) -> None:
    plugged([DIALECTS], "acme", CODE, ops={"acme": "ACME"})
    imported = import_program(program)
    assert imported.added == {TARGET: "acme"}
    assert "tensor.add" in {node.op for node in imported.graph.nodes}


def test_a_model_with_the_operator_is_refused_where_its_dialect_is_left_out(
    plugged: Plugged, program: Exported
) -> None:
    plugged([DIALECTS], "acme", "import no_such_library", ops={"acme": "ACME"})
    said = (
        r"acme\.twice\.default in module .* no import rule; the dialect 'acme' of acme 1\.5 is left out: ModuleNotFound"
    )
    with pytest.warns(PluginWarning), pytest.raises(UnsupportedOperatorError, match=said):
        import_program(program)
