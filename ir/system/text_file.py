"""Files that a user names: text to be read, and what is written for them."""

from __future__ import annotations

import os
from pathlib import Path

from inferir.ir.errors import InferirError
from inferir.ir.system.atomic_file import replace_file

MAX_BYTES = 64 << 20


def read_text(path: str | os.PathLike[str], name: str) -> str:
    """The text of a file in UTF-8, without a byte order mark. `name`: the option that names it.

    Raises `InferirError` naming both for a file that cannot be read, is larger than `MAX_BYTES`, or is no text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InferirError(f"{name} {os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise InferirError(f"{name} {os.fspath(path)}: is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InferirError(f"{name} {os.fspath(path)}: is not text in UTF-8") from None
    if "\0" in text:
        raise InferirError(f"{name} {os.fspath(path)}: holds a NUL character, so it is not text")
    return text


def write_file(file: Path, content: bytes) -> None:
    """Write a file, as a whole or not at all. Raises `InferirError` naming it."""
    try:
        replace_file(file, content)
    except (OSError, ValueError) as error:
        raise InferirError(f"{file}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
