"""The GPU driver against the least that device images need. Works without a GPU, and says that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inferir.doctor.finding import Finding, failure
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.contract.gpu_driver import FLOORS, RECORD, driver_floor, driver_version, version_text
from inferir.ir.contract.gpu_kernel import GpuLibrary
from inferir.ir.errors import InferirError

LAYER, NAME = "gpu", "driver"


def check_driver(artifact: Path | None, record: Path = RECORD) -> Iterator[Finding]:
    """Compare the driver that `record` tells of with what the artifact's device images need, if it has any, and
    otherwise with what images of any known tools need.
    """
    try:
        found = driver_version(record)
    except (InferirError, OSError) as error:
        yield failure(LAYER, NAME, error, "install the NVIDIA driver again")
        return
    needed = _tools(artifact)
    if found is None:
        if needed:
            message = f"no GPU: {record} does not exist, and the artifact was compiled for one"
            yield Finding(LAYER, NAME, "failed", message, "run it on a machine with an NVIDIA driver")
        else:
            yield Finding(LAYER, NAME, "ok", "no GPU: artifacts for processors need none")
        return
    have, state = version_text(found), "failed" if needed else "warning"
    for tools in needed or [str(max(FLOORS))]:
        floor = driver_floor(tools)
        if floor is None:
            message = f"{have}; which one images of ptxas {tools} need is not known"
            yield Finding(LAYER, NAME, "warning", message, "update Inferir")
        elif found < floor:
            message = f"{have} is too old: kernels made with CUDA {tools.partition('.')[0]} need {version_text(floor)}"
            advice = f"update the NVIDIA driver to {version_text(floor)} or newer"
            yield Finding(LAYER, NAME, "failed" if state == "failed" else "warning", message, advice)
        else:
            yield Finding(LAYER, NAME, "ok", f"{have}, and {version_text(floor)} is enough")


def _tools(artifact: Path | None) -> list[str]:
    """Versions of ptxas that made the artifact's device images; none for one that has no such images."""
    if artifact is None:
        return []
    try:
        manifest = read_manifest(artifact)
        if manifest.target.kind != "cuda":
            return []
        names = sorted({bucket.library for bucket in manifest.buckets})
        libraries = [GpuLibrary.from_bytes((artifact / name).read_bytes(), name) for name in names]
    except (InferirError, OSError):  # of a damaged artifact another layer tells
        return []
    return sorted({kernel.versions.get("ptxas", "?") for library in libraries for kernel in library.kernels})
