"""Import rules of other distributions, which their dialects bring (`inferir.ir.graph.registry.Dialect`)."""

from __future__ import annotations

from inferir.frontend.capture.importer import Importer, Rule
from inferir.ir.errors import UntraceableError
from inferir.ir.graph.registry import DIALECTS, added_dialects


def added_rule(imp: Importer, target: str) -> Rule | None:
    """The rule for an operator without rule of this system, which `imp` notes; None if no dialect has one.

    Raises `UntraceableError` if several have one.
    """
    found = {name: dialect.imports[target] for name, dialect in added_dialects().items() if target in dialect.imports}
    if len(found) > 1:
        owners = " and ".join(sorted(f"{name!r} of {origin_of(name)}" for name in found))
        raise UntraceableError(imp.describe(f"the dialects {owners} both have an import rule; remove one of them"))
    for name, rule in found.items():
        imp.added[target] = name
        return rule
    return None


def origin_of(dialect: str) -> str:
    """The distribution and version that bring a dialect."""
    info = DIALECTS.outside(dialect)
    return info.origin if info is not None else "this system"


def absent_rules() -> str:
    """Which dialects might have had a rule, but are left out, as the end of a message; "" if there is none."""
    return "".join(f"; the dialect {i.name!r} of {i.origin} is left out: {i.reason}" for i in DIALECTS.left_out())
