"""What every operation of recorded steps had to do, from the artifact's kernel graph and the steps' counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inferir.ir.contract.manifest import BucketRecord
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.errors import ArtifactError, InferirError
from inferir.ir.graph.graph import Node
from inferir.ir.graph.parser import parse_graph
from inferir.profile.region_work import Work, does_the_work, region_work, regions_by_digest
from inferir.runtime.recording.recorded_steps import StepRecord

GRAPH = Path("ir", "kernels.txt")


class OperationWork:
    """Finds the work of operations. Of several kernels that compute a region one after another, one has its work."""

    def __init__(self, artifact: Path) -> None:
        """Raises `ArtifactError` if the artifact lacks its kernel graph."""
        self._regions = _regions(artifact)
        self._step: StepRecord | None = None
        self._known: dict[str, Work] = {}

    def of(self, step: StepRecord, bucket: BucketRecord, operation: int) -> Work:
        kernel = bucket.kernels[bucket.program[operation].kernel]
        if not does_the_work(kernel.name) or kernel.region not in self._regions:
            return Work()
        if step is not self._step:
            self._step, self._known = step, {}
        if kernel.region not in self._known:
            items = {name: np.frombuffer(raw, np.int32).reshape(-1, 6) for name, raw in step.items.items()}
            self._known[kernel.region] = region_work(self._regions[kernel.region], StepCounts(*step.counts), items)
        return self._known[kernel.region]


def _regions(artifact: Path) -> dict[str, Node]:
    file = artifact / GRAPH
    try:
        return regions_by_digest(parse_graph(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, InferirError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(f"{file}: the kernel graph cannot be read: {reason}; compile the model again") from None
