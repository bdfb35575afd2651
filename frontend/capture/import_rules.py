"""The table of import rules. It knows no rule: those of PyTorch's operators enter it from `aten/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferir.ir.errors import IRError

Rule = Callable[..., Any]
"""(importer, the operator's arguments as imported) -> what it becomes (`importer.Imports`)."""

RULES: dict[str, Rule] = {}


def rule(*targets: str) -> Callable[[Rule], Rule]:
    """Register a function as the import rule of the operators named `targets` (as printed, e.g. `aten.add.Tensor`)."""

    def register(function: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise IRError(f"two import rules for {target}")
            RULES[target] = function
        return function

    return register
