"""A section of the HTML report that some part of a verification adds: text, a table, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """text: a paragraph; columns, rows: a table of texts, `right` naming its columns of numbers; code: lines that stay
    as they are."""

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    right: Sequence[str] = ()
    code: str = ""

    @property
    def anchor(self) -> str:
        """The section's id in the page."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())
