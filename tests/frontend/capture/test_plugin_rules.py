"""Import rules of other distributions: who has one, and what is said where one is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from plugin_distributions import Plugged

from inferir.frontend.capture.importer import Importer
from inferir.frontend.capture.plugin_rules import absent_rules, added_rule
from inferir.ir.errors import UntraceableError
from inferir.ir.graph.registry import DIALECTS
from inferir.ir.plugin_registry import PluginWarning

CODE = """
from inferir.ir.graph.registry import Dialect
ACME = Dialect("acme", imports={"acme.twice.default": lambda imp, x: imp.op("tensor.add", x, x)})
OTHER = Dialect("other", imports=ACME.imports)
"""
TARGET = "acme.twice.default"


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
