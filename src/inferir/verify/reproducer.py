"""Folders that show a fault alone: a script, its inputs, and what it compares.

    DIR/1-pass-recognise-rms-norm/reproduce.py     exit status 1 while the fault is there, 0 once it is gone
                                 /…                inputs (safetensors), IR text, a library of kernels

They need an installed `inferir[compile]`, and neither the model nor the artifact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from inferir.ir.errors import InferirError

SCRIPT = "reproduce.py"

_TEXT = '''"""{title}

    python {script}{options}

{what}
"""

import sys
from pathlib import Path

from inferir.verify.{module} import reproduce

sys.exit(reproduce(Path(__file__).parent{arguments}))
'''


def check_free(place: Path | None) -> None:
    """Raise `InferirError` if `place` is there and not an empty folder."""
    if place is None or not (place.exists() or place.is_symlink()):
        return
    try:
        free = place.is_dir() and not any(place.iterdir())
    except OSError as error:
        raise InferirError(f"--bisect-dir {place}: cannot be read: {error.strerror}") from None
    if not free:
        raise InferirError(f"--bisect-dir {place} is there and not an empty folder; choose another place")


class ReproducerFolder:
    """The folder of a bisection's reproducers: `place`, or beside the current folder's files a new one named after the
    artifact. It is made with the first reproducer, and holds nothing else.
    """

    def __init__(self, place: Path | None, artifact: Path) -> None:
        """Raises `InferirError` if `place` is there and not an empty folder."""
        check_free(place)
        self._place = place
        self._name = artifact.resolve().name
        self._count = 0

    def write(
        self,
        name: str,
        what: str,
        module: str,
        files: Mapping[str, bytes | str | Mapping[str, torch.Tensor]],
        *,
        takes_options: bool = False,
    ) -> Path:
        """Write a reproducer that calls `reproduce` of `inferir.verify.MODULE`. Raises `InferirError`."""
        self._count += 1
        options = " [--rebuild]" if takes_options else ""
        script = _TEXT.format(
            title=name,
            script=SCRIPT,
            options=options,
            what=what,
            module=module,
            arguments=", sys.argv[1:]" if takes_options else "",
        )
        try:
            folder = self._root() / f"{self._count}-{re.sub(r'[^A-Za-z0-9_.+-]+', '-', name).strip('-')[:80]}"
            folder.mkdir(parents=True)
            for file, content in {SCRIPT: script, **files}.items():
                _write(folder / file, content)
        except OSError as error:
            raise InferirError(
                f"{error.filename or self._place}: cannot be written: {error.strerror or error}"
            ) from None
        return folder

    def _root(self) -> Path:
        if self._place is None:
            for number in range(1, 10_000):
                place = Path(f"{self._name}.bisect" + (f"-{number}" if number > 1 else ""))
                try:
                    os.mkdir(place)
                except FileExistsError:
                    continue
                self._place = place
                break
        assert self._place is not None
        return self._place


def _write(file: Path, content: bytes | str | Mapping[str, torch.Tensor]) -> None:
    if isinstance(content, str):
        file.write_text(content, encoding="utf-8")
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        from safetensors.torch import save_file

        save_file({name: tensor.detach().clone().contiguous() for name, tensor in content.items()}, file)
