"""Load an artifact: check everything, map the weights, open the kernel libraries.

Nothing of an artifact is used before its size and checksum have been compared with the manifest. A failure is one line
that names the file or the missing processor feature.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from inferir.ir.contract.artifact import Manifest, read_manifest, verify_files
from inferir.ir.contract.target import host_features, missing_features
from inferir.ir.errors import ArtifactError, TargetError
from inferir.runtime.memory import Bytes, address, map_file


@dataclass(frozen=True)
class LoadedArtifact:
    """A verified artifact in memory.

    `files` holds the mapped weight files and `libraries` the opened kernels, by their path in the artifact.
    """

    path: Path
    manifest: Manifest
    files: dict[str, Bytes]
    libraries: dict[str, ctypes.CDLL]

    def weight_address(self, name: str) -> int:
        """Address of a packed weight (a multiple of 64)."""
        record = self.manifest.weights[name]
        return address(self.files[record.file]) + record.offset

    @property
    def tokenizer_dir(self) -> Path:
        return self.path / "tokenizer"


def load_artifact(path: str | os.PathLike[str]) -> LoadedArtifact:
    """Verify and load the artifact folder `path`.

    Raises `ArtifactError` naming a missing, truncated or damaged file, `TargetError` naming the processor features
    that the kernels need and this machine lacks.
    """
    root = Path(path)
    manifest = read_manifest(root)
    check_target(manifest)
    files = {}
    for name in sorted({t.file for t in manifest.weights.values()}):
        with contextlib.suppress(OSError):  # of what is missing the comparison tells
            files[name] = map_file(root / name)  # before it is read otherwise, and cached in small pages
    verify_files(root, manifest, mapped={name: content.data for name, content in files.items()})
    libraries = {name: _open(root / name) for name in sorted({b.library for b in manifest.buckets})}
    return LoadedArtifact(root, manifest, files, libraries)


def check_target(manifest: Manifest, features: frozenset[str] | None = None) -> None:
    """Raise `TargetError` unless a processor with these feature flags (default: this machine's) can run the kernels."""
    target = manifest.target
    if target.kind != "cpu":
        raise TargetError(f"the artifact was compiled for {target.name} ({target.kind}); this runtime runs on CPUs")
    missing = missing_features(target, host_features() if features is None else features)
    if missing:
        raise TargetError(
            f"the artifact was compiled for {target.name}, but this processor lacks {', '.join(missing)}; "
            "compile the model again with --target host on this machine or with an older target"
        )


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as e:
        raise ArtifactError(f"{path}: cannot be loaded: {e}") from None
