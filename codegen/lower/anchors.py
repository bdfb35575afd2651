"""Anchors of a backend: one file per anchor, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import CodegenError

_SUFFIX = "_region"


@dataclass(frozen=True)
class Anchors:
    """What a backend lowers: for the anchor NAME, the module `NAME_region` of `package` has a function `lower`.

    backend: its name, for messages.
    """

    backend: str
    package: str

    @property
    def names(self) -> tuple[str, ...]:
        """Anchors that have a module."""
        paths = importlib.import_module(self.package).__path__
        found = (m.name for m in pkgutil.iter_modules(paths))
        return tuple(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))

    def lower(self, anchor: str) -> Any:
        """The function that lowers regions of this anchor. Raises `CodegenError` naming an anchor without module."""
        if anchor not in self.names:
            raise CodegenError(f"the {self.backend} backend has no {anchor} kernels, only {', '.join(self.names)}")
        return importlib.import_module(f"{self.package}.{anchor}{_SUFFIX}").lower
