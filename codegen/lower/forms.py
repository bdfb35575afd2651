"""Which elementwise ops a backend writes itself: its own, and those that other distributions bring a form of."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import CodegenError
from inferir.ir.plugin_registry import PluginRegistry

Form = Callable[..., str]
"""(node, operands, their element type, and what else the backend gives) -> the text of the result, not rounded."""


def forms(kind: str, noun: str) -> PluginRegistry[Form]:
    """The registry of a backend's forms, by the name of the op, such as "acme.hinge"."""
    return PluginRegistry(kind, noun, CodegenError, lambda v: None if callable(v) else "it cannot be called")


@dataclass(frozen=True)
class Written(Container[str]):
    """own: ops that the backend has a form of; added: forms of other ops. Every other op must decompose."""

    own: frozenset[str]
    added: PluginRegistry[Form]

    def __contains__(self, op: Any) -> bool:
        return op in self.own or self.form(op) is not None

    def form(self, op: str) -> Form | None:
        """The form that another distribution brings of an op, if there is one that can be used."""
        return None if op in self.own else self.added.load([op]).get(op)
