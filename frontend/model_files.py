"""JSON files of a model folder: what is there is an object, or one clear error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferir.ir.errors import FrontendError


def read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object. Raises `FrontendError` naming the file."""
    try:
        out = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FrontendError(f"{file.name} is missing from {file.parent}") from None
    except OSError as error:
        raise FrontendError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FrontendError(f"{file} cannot be read: it is not UTF-8; store it in that encoding") from error
    except RecursionError as error:
        raise FrontendError(f"{file} cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise FrontendError(f"{file} cannot be read: {error}") from error
    if not isinstance(out, dict):
        raise FrontendError(f"{file} does not hold a JSON object")
    return out


def optional_json(file: Path) -> Mapping[str, Any]:
    """A JSON object, {} if there is no such file. Raises `FrontendError` naming what is there but cannot be read."""
    try:
        there = file.exists() or file.is_symlink()
    except OSError as error:
        raise FrontendError(f"{file} cannot be read: {error.strerror}") from error
    return read_json(file) if there else {}
