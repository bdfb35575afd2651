"""The linker that makes shared objects of TVM's object code."""

from __future__ import annotations

import shutil

LINKERS = ("ld.lld", "ld")
"""Names under which one is looked for, in order."""


def find_linker() -> str | None:
    """Path of the first linker on PATH, None if there is none."""
    return next((path for name in LINKERS if (path := shutil.which(name)) is not None), None)
