"""Replacing a file as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(file: Path, raw: bytes) -> None:
    """Write `raw` beside `file`, flush it to the disk and rename it over `file`. Raises OSError, with nothing left."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as f:
            f.write(raw)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
