"""Tiny distributions with entry points, for tests of plug-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferir.codegen.cache import source_hash
from inferir.ir import plugin_registry
from inferir.ir.plugin_registry import BUILT_IN, PluginRegistry

Plugged = Callable[..., Path]


def write_distribution(folder: Path, name: str, code: str, **entries: dict[str, str]) -> Path:
    """Put the distribution NAME 1.5 into `folder`, which is to be on the path: a module NAME_code with `code`, and
    entries by kind, whose values are names in that module. The module's file.
    """
    module = folder / f"{name}_code.py"
    module.write_text(code)
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    lines: list[str] = []
    for kind, points in entries.items():
        lines += [f"[inferir.{kind}]", *(f"{n} = {name}_code:{attribute}" for n, attribute in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return module


def forget() -> None:
    """Have the next question look for distributions again."""
    plugin_registry._entry_points.cache_clear()
    source_hash.plugin_digests.cache_clear()


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugged]:
    """`plugged(registries, name, code, **entries)`: `write_distribution` for this process until the end of the test;
    `registries` look again.
    """

    def put(registries: list[PluginRegistry[Any]], name: str, code: str, **entries: dict[str, str]) -> Path:
        module = write_distribution(tmp_path, name, code, **entries)
        forget()
        for registry in registries:
            own = {n: e for n, e in registry._entries.items() if e.origin == BUILT_IN}
            for attribute, value in {"_entries": own, "_refused": [], "_scanned": False, "_warned": set()}.items():
                monkeypatch.setattr(registry, attribute, value)
        return module

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in [n for n in sys.modules if n.endswith("_code") and not n.startswith("_")]:
        del sys.modules[name]
    monkeypatch.undo()
    forget()
