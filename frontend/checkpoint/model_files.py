"""Files of a model folder: what is there can be read and is what it should be, or one clear error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferir.ir.errors import FrontendError


def read_bytes(file: Path) -> bytes:
    """The content of a file; a pipe or device in its place is never waited for. Raises `FrontendError` naming it."""
    try:
        if file.exists() and not file.is_file():
            raise FrontendError(f"{file} cannot be read: it is not a file")
        return file.read_bytes()
    except FileNotFoundError:
        raise FrontendError(f"{file.name} is missing from {file.parent}") from None
    except OSError as error:
        raise FrontendError(f"{file} cannot be read: {error.strerror}") from error


def read_text(file: Path) -> str:
    """The text of a file in UTF-8, with line ends as Python reads them. Raises `FrontendError` naming the file."""
    try:
        text = read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FrontendError(f"{file} cannot be read: it is not UTF-8; store it in that encoding") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object. Raises `FrontendError` naming the file."""
    text = read_text(file)
    try:
        out = json.loads(text)
        json.dumps(out, ensure_ascii=False).encode()  # an escape may give half a character, which no text can hold
    except RecursionError as error:
        raise FrontendError(f"{file} cannot be read: it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise FrontendError(
            f"{file} cannot be read: it has an escape of half a character (a lone surrogate)"
        ) from error
    except ValueError as error:
        raise FrontendError(f"{file} cannot be read: {error}") from error
    if not isinstance(out, dict):
        raise FrontendError(f"{file} does not hold a JSON object")
    return out


def there(file: Path) -> bool:
    """Whether anything has that name, be it a link to nothing. Raises `FrontendError` if that cannot be seen."""
    try:
        return file.is_symlink() or file.exists()
    except OSError as error:
        raise FrontendError(f"{file} cannot be read: {error.strerror}") from error


def optional_json(file: Path) -> Mapping[str, Any]:
    """A JSON object, {} if there is no such file. Raises `FrontendError` naming what is there but cannot be read."""
    return read_json(file) if there(file) else {}
