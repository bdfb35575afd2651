"""Read, write and verify artifacts.

    ART/manifest.json           `Manifest`
    ART/kernels/*.so            one library per bucket
    ART/weights/*.safetensors   packed tensors, each at a multiple of 64 bytes
    ART/tokenizer/              tokenizer.json, tokenizer_config.json, chat template, generation_config.json
    ART/ir/                     the graphs after each phase, for people

An artifact is relocatable and read-only: paths are relative to the folder, every file but the manifest has its size
and checksum (BLAKE3) in `files`, and the manifest carries a digest over its own bytes. Every failure is an
`ArtifactError` of one line that names the file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from inferir.ir.contract.artifact_check import check_manifest
from inferir.ir.contract.kv_specs import decode_spec
from inferir.ir.contract.manifest import FORMAT_VERSION, FileRecord, Manifest, PluginRecord
from inferir.ir.contract.plugin_check import check_plugins
from inferir.ir.errors import ArtifactError
from inferir.ir.system.atomic_file import replace_file
from inferir.ir.system.checksum import checksum, file_checksum

MANIFEST = "manifest.json"
_DIGEST = re.compile(rb'\A\{"digest":"([0-9a-f]{64})","format":(\d+)[,}]')
_DIGEST_AT = slice(len('{"digest":"'), len('{"digest":"') + 64)


class _Plugins(msgspec.Struct):
    plugins: tuple[PluginRecord, ...] = ()


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The checked manifest of the artifact folder `path` (or of the manifest file itself).

    Raises `ArtifactError` if it is missing, not a manifest, of another format version, damaged or inconsistent.
    """
    file = Path(path)
    if file.name != MANIFEST or file.is_dir():
        file = file / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"{file}: not found; is {file.parent} an artifact made by `inferir compile`?") from None
    except OSError as e:
        raise ArtifactError(f"{file}: cannot be read: {e.strerror}") from None
    head = _DIGEST.match(raw)
    if head is None:
        raise ArtifactError(f"{file}: truncated or not an Inferir manifest; compile the model again")
    found = int(head[2])
    if found != FORMAT_VERSION:
        raise ArtifactError(
            f"{file}: format {found}, this version of Inferir reads format {FORMAT_VERSION}; compile the model again"
        )
    if _digest(raw) != head[1].decode():
        raise ArtifactError(f"{file}: checksum mismatch, the file was damaged or edited; compile the model again")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest, dec_hook=decode_spec)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ArtifactError(f"{file}: {e}") from None
    except ArtifactError:  # of a KV cache kind that is not known here
        check_plugins(msgspec.json.decode(raw, type=_Plugins).plugins)
        raise
    check_manifest(manifest)
    return manifest


def write_manifest(art_dir: str | os.PathLike[str], manifest: Manifest) -> Manifest:
    """Check `manifest`, write it to the folder `art_dir` by a rename, and return it with its digest."""
    check_manifest(manifest)
    raw = msgspec.json.encode(msgspec.structs.replace(manifest, digest="0" * 64)) + b"\n"
    digest = _digest(raw)
    raw = raw[: _DIGEST_AT.start] + digest.encode() + raw[_DIGEST_AT.stop :]
    file = Path(art_dir) / MANIFEST
    try:
        replace_file(file, raw)
    except OSError as e:
        raise ArtifactError(f"{file}: cannot be written: {e.strerror}") from None
    return msgspec.structs.replace(manifest, digest=digest)


def file_record(path: str | os.PathLike[str]) -> FileRecord:
    """Size and checksum of one file. Raises OSError."""
    digest, size = file_checksum(Path(path))
    return FileRecord(blake3=digest, bytes=size)


def file_records(
    art_dir: str | os.PathLike[str], known: Mapping[str, FileRecord] = MappingProxyType({})
) -> dict[str, FileRecord]:
    """Records of every file below `art_dir` except the manifest, by relative path in sorted order. known: those that
    need not be computed.
    """
    root = Path(art_dir)
    paths = sorted(p for p in root.rglob("*") if p.is_file() and p != root / MANIFEST)
    names = {p.relative_to(root).as_posix(): p for p in paths}
    return {name: known.get(name) or file_record(path) for name, path in names.items()}


def verify_files(
    art_dir: str | os.PathLike[str],
    manifest: Manifest | None = None,
    *,
    names: Iterable[str] | None = None,
    mapped: Mapping[str, memoryview] = MappingProxyType({}),
) -> Manifest:
    """Compare every file (or only `names`) with its record: presence, size, checksum; each by all threads.

    mapped: contents of files that are in memory already, which are compared instead of reading the file. Sizes are
    compared first, so a truncated download is reported at once. Raises `ArtifactError` naming the file.
    """
    root = Path(art_dir)
    manifest = read_manifest(root) if manifest is None else manifest
    records = {name: manifest.files[name] for name in (manifest.files if names is None else names)}
    for name, record in records.items():
        try:
            size = (root / name).stat().st_size
        except OSError as e:
            raise ArtifactError(
                f"{root / name}: missing from the artifact ({e.strerror}); copy or compile it again"
            ) from None
        if size != record.bytes:
            raise ArtifactError(f"{root / name}: {size} bytes instead of {record.bytes}; copy or compile it again")

    for name, record in records.items():
        try:
            content = mapped.get(name)
            found = (
                file_record(root / name)
                if content is None
                else FileRecord(blake3=checksum(content), bytes=len(content))
            )
        except OSError as e:
            raise ArtifactError(f"{root / name}: cannot be read: {e.strerror}") from None
        if found != record:
            raise ArtifactError(f"{root / name}: checksum mismatch, the file is damaged; copy or compile it again")
    return manifest


def _digest(raw: bytes) -> str:
    """sha256 of a manifest's bytes with the digest itself blanked out."""
    return hashlib.sha256(raw[: _DIGEST_AT.start] + b"0" * 64 + raw[_DIGEST_AT.stop :]).hexdigest()
