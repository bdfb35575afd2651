"""Tuning records: which tiles of matrix products were measured, where, and what came of it.

A file of records is JSON, written whole by a rename. A record belongs to exactly one `TuningKey`; whoever finds no
record for a key uses the tile that the generator chooses by itself, so a file can hold records of many models, targets
and versions side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError
from inferir.ir.system.atomic_file import replace_file
from inferir.ir.system.text_file import MAX_BYTES

FORMAT_VERSION = 1
"""Version of the schema; a reader accepts exactly its own."""

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Choice = dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**20)]]
"""Sizes by name; the code generator knows which there are."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class TuningKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the best tile may depend on.

    The product is x [rows, `k`] times [`k`, `n`] in `dtype` ("bf16" or "f32"), with `lo` to `most` rows, its weights in
    `format`, interleaved by `interleave`. `threads` is how many measured, `generator` names the code generator's
    version.
    """

    k: Count
    n: Count
    dtype: str
    interleave: Count
    lo: Count
    most: Count
    format: str = "panels"
    target: Target
    threads: Count
    generator: str


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a measurement found: `tile`, or None where the generator's own choice `default` held.

    Seconds are per row, medians of `rounds` measurements of the last race; `spread` is the larger interquartile range.
    `candidates` counts the tiles that took part, the default among them.
    """

    key: TuningKey
    default: Choice
    tile: Choice | None
    default_seconds: Seconds
    seconds: Seconds
    spread: Seconds
    candidates: Count
    rounds: Count


class TuningFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT_VERSION
    records: tuple[TuningRecord, ...] = ()


class _Head(msgspec.Struct):
    format: int


def read_records(path: str | os.PathLike[str]) -> tuple[TuningRecord, ...]:
    """The records of a file. Raises `TuningError`, which names it, if it is missing, malformed or of another format."""
    file = Path(path)
    try:
        with open(file, "rb") as source:  # a device may go on for ever
            raw = source.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise TuningError(f"{file}: not found; `inferir tune` writes tuning records") from None
    except OSError as error:
        raise TuningError(f"{file}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise TuningError(f"{file}: is larger than {MAX_BYTES >> 20} MiB")
    try:
        found = msgspec.json.decode(raw, type=_Head).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TuningError(f"{file}: not a file of tuning records: {error}") from None
    if found != FORMAT_VERSION:
        raise TuningError(f"{file}: format {found}, this version of Inferir reads format {FORMAT_VERSION}; tune again")
    try:
        records = msgspec.json.decode(raw, type=TuningFile).records
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TuningError(f"{file}: {error}") from None
    keys = {r.key for r in records}
    if len(keys) != len(records):
        raise TuningError(f"{file}: two records have the same key; remove one of them, or tune again")
    return records


def write_records(path: str | os.PathLike[str], records: Iterable[TuningRecord]) -> None:
    """Write a file of records: as a whole, or not at all. Raises `TuningError` naming the file."""
    file = Path(path)
    raw = msgspec.json.format(msgspec.json.encode(TuningFile(records=tuple(records))), indent=1) + b"\n"
    try:
        replace_file(file, raw)
    except OSError as error:
        raise TuningError(f"{file}: cannot be written: {error.strerror}") from None
