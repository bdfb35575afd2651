"""Load an artifact: check everything, and map the weights.

Nothing of an artifact is used before its size and checksum have been compared with the manifest. A failure is one line
that names the file, or what this machine lacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferir.ir.contract.artifact import read_manifest, verify_files
from inferir.ir.contract.manifest import Manifest
from inferir.ir.contract.plugin_check import check_plugins
from inferir.ir.contract.target import Target
from inferir.ir.system.quantities import seconds, size
from inferir.runtime.memory import Bytes, address, map_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedArtifact:
    """A verified artifact in memory.

    `files` holds the mapped weight files by their path in the artifact.
    """

    path: Path
    manifest: Manifest
    files: dict[str, Bytes]

    def weight_address(self, name: str) -> int:
        """Address of a packed weight (a multiple of 64)."""
        record = self.manifest.weights[name]
        return address(self.files[record.file]) + record.offset

    @property
    def tokenizer_dir(self) -> Path:
        return self.path / "tokenizer"


def load_artifact(path: str | os.PathLike[str], check_target: Callable[[Target], None]) -> LoadedArtifact:
    """Verify and load the artifact folder `path`, if `check_target` finds that this machine can run its kernels.

    Raises `ArtifactError` naming a missing, truncated or damaged file or a plug-in that is not installed, and what
    `check_target` raises.
    """
    root = Path(path)
    start = time.perf_counter()
    manifest = read_manifest(root)
    check_plugins(manifest.plugins)
    check_target(manifest.target)
    files = {}
    for name in sorted({t.file for t in manifest.weights.values()}):
        with contextlib.suppress(OSError):  # of what is missing the comparison tells
            files[name] = map_file(root / name)  # before it is read otherwise, and cached in small pages
    verify_files(root, manifest, mapped={name: content.data for name, content in files.items()})
    weights, spent = size(manifest.memory.weight_bytes), seconds(time.perf_counter() - start)
    log.info("%s: checked and mapped in %s: %s, %s of weights", root, spent, manifest.model.name, weights)
    return LoadedArtifact(root, manifest, files)
