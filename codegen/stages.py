"""Stages of a bucket from files: what a compile dumps may be edited and given back.

DIR/t1/k0_rms_norm.py    the source of a kernel
DIR/t1/module.py         the text of the whole library
DIR/t1/module.so         the library
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from inferir.codegen.backend import LoweredBucket
from inferir.ir.errors import CodegenError

LIBRARY, SOURCE = "module", "module.py"

BY_HAND = "--override"
"""Who made a kernel whose text comes from a file."""


@dataclass(frozen=True)
class Stages:
    """The files that replace stages of one bucket, by name; `place` is for messages."""

    place: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every file, in hex."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.files.items())}

    def text(self, name: str) -> str:
        """The text of a file, "" if there is none. Raises `CodegenError` for one that is no text."""
        try:
            return self.files.get(name, b"").decode()
        except UnicodeDecodeError:
            raise CodegenError(f"{self.place}/{name} is no UTF-8 text") from None

    def kernels(self, lowered: LoweredBucket, suffix: str) -> LoweredBucket:
        """`lowered` with the kernels that are replaced. Raises `CodegenError` for a file that replaces nothing."""
        names = {f"{kernel.name}.py": i for i, kernel in enumerate(lowered.kernels)}
        for name in self.files:
            if name not in (*names, SOURCE, LIBRARY + suffix):
                raise CodegenError(
                    f"{self.place}/{name} replaces nothing; stages are {LIBRARY}{suffix}, {SOURCE}, {', '.join(names)}"
                )
        last = next((stage for stage in (LIBRARY + suffix, SOURCE) if stage in self.files), None)
        if last is not None and len(self.files) > 1:
            rest = ", ".join(name for name in self.files if name != last)
            raise CodegenError(f"{self.place}/{last} replaces what is made of {rest}; leave only one of them there")
        kernels = [
            replace(kernel, source=self.text(name)) if name in self.files else kernel
            for name, kernel in zip(names, lowered.kernels, strict=True)
        ]
        records = [
            msgspec.structs.replace(record, made_by=BY_HAND) if name in self.files else record
            for name, record in zip(names, lowered.meta.kernels, strict=True)
        ]
        return LoweredBucket(tuple(kernels), msgspec.structs.replace(lowered.meta, kernels=tuple(records)))


NO_STAGES = Stages()


def read_stages(folder: Path, buckets: Iterable[str]) -> dict[str, Stages]:
    """The files of `folder` by bucket. Raises `CodegenError` naming what cannot be read or belongs to no bucket."""
    known = tuple(buckets)
    try:
        places = sorted(folder.iterdir())
        found = {p.name: Stages(str(p), {f.name: f.read_bytes() for f in sorted(p.iterdir())}) for p in places}
    except OSError as error:
        raise CodegenError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
    for place in places:
        if place.name not in known:
            raise CodegenError(f"{place}: there is no bucket {place.name}; buckets are {', '.join(known)}")
    if not any(stages.files for stages in found.values()):
        raise CodegenError(f"{folder}: there is no stage in it that could replace one")
    return found
