"""Tiny distributions with entry points, for tests of plug-ins."""

from __future__ import annotations

from pathlib import Path


def write_distribution(folder: Path, name: str, code: str, **entries: dict[str, str]) -> None:
    """Put the distribution NAME 1.5 into `folder`, which is to be on the path: a module NAME_code with `code`, and
    entries by kind, whose values are names in that module.
    """
    (folder / f"{name}_code.py").write_text(code)
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    lines: list[str] = []
    for kind, points in entries.items():
        lines += [f"[inferir.{kind}]", *(f"{n} = {name}_code:{attribute}" for n, attribute in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
