"""Generated source as Python modules: Triton reads a kernel's text from the file it was defined in."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from inferir.ir.errors import CodegenError


def write_module(text: str, folder: Path) -> Path:
    """Write `text` to a file named by its content, unless it is there already. Readers never see half a file."""
    path = folder / f"k{hashlib.sha256(text.encode()).hexdigest()[:24]}.py"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)
    return path


def load_function(path: Path, name: str) -> Any:
    """The kernel `name` of a module file. Raises `CodegenError` naming the file if it cannot be imported."""
    spec = importlib.util.spec_from_file_location(f"inferir_triton_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return getattr(module, name)
    except Exception as error:
        raise CodegenError(f"{path.name}: {type(error).__name__}: {error}") from error
