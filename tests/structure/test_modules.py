"""The shape of the tree: small files, one meaning per module name, and no package outside an import contract."""

from __future__ import annotations

import statistics
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "inferir"
LONGEST, MEDIAN = 450, 150  # lines of a file

BACKENDS = ("inferir.codegen.tvm", "inferir.codegen.triton")
"""What each backend has of its own: files of one role have one name in both."""


def modules() -> dict[str, Path]:
    """Every module of the package by its full name. Top-level folders are links."""
    found = {}
    folders = [PACKAGE, *(p for p in PACKAGE.iterdir() if p.is_symlink())]
    for folder in folders:
        for path in folder.resolve().rglob("*.py"):
            inner = path.relative_to(folder.resolve()).with_suffix("").parts
            parts = ("inferir", *(() if folder == PACKAGE else (folder.name,)), *inner)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_files_are_small() -> None:
    sizes = {name: lines(path) for name, path in MODULES.items()}
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}
    assert statistics.median(sizes.values()) <= MEDIAN


def test_a_module_name_has_one_meaning() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for name, path in MODULES.items():
        if path.name not in ("__init__.py", "__main__.py"):
            named[path.name].append(name)
    doubled = {file: names for file, names in named.items() if len(names) > 1}
    unrelated = {file: names for file, names in doubled.items() if not _is_role(names)}
    assert unrelated == {}


def _is_role(names: list[str]) -> bool:
    """Whether modules of one name are the same part of different backends, or of the protocol above them."""
    owners = [next((b for b in BACKENDS if n.startswith(f"{b}.")), n.rpartition(".")[0]) for n in names]
    return len(set(owners)) == len(owners) and all(
        o in (*BACKENDS, "inferir.codegen", "inferir.codegen.lower") for o in owners
    )


def test_every_package_is_in_an_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layered = {name for contract in contracts if contract["type"] == "layers" for name in _layered(contract)}
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py" and name != "inferir"}
    outside = {p for p in packages if not any(p == name or p.startswith(f"{name}.") for name in layered)}
    assert outside == set()


def _layered(contract: dict[str, Any]) -> set[str]:
    """Full names of the modules in a contract's layers."""
    names = {part.strip(" ()") for layer in contract["layers"] for part in layer.replace(":", "|").split("|")}
    return {f"{container}.{n}" for container in contract.get("containers", []) for n in names} or names
