"""Stored weights that are not what their transforms make of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from inferir.ir.contract.manifest import TensorRecord
from inferir.ir.graph.dtypes import torch_dtype
from inferir.runtime.loader import LoadedArtifact
from inferir.verify.findings import Worst

TABLE_ULPS = 4.0
"""Computed tables, such as sines, may differ by so many units of their type's epsilon times the table's largest value:
another machine's library computed them. What is only packed has the same bits."""


@dataclass(frozen=True)
class WrongWeight:
    """A stored tensor with `wrong` elements that are not as expected, and the first of them."""

    name: str
    record: TensorRecord
    stored: torch.Tensor
    expected: torch.Tensor
    wrong: int
    first: Worst

    @property
    def measured(self) -> str:
        at = ", ".join(map(str, self.first.index))
        return (
            f"{self.wrong:,} of {self.stored.numel():,} elements differ, first [{at}]: stored {self.first.found:.9g}, "
            f"expected {self.first.expected:.9g}"
        )


def stored(artifact: LoadedArtifact, name: str) -> torch.Tensor:
    """A tensor of the artifact, copied."""
    record = artifact.manifest.weights[name]
    content = artifact.files[record.file][record.offset : record.offset + record.nbytes].copy()
    return torch.from_numpy(content).view(torch_dtype(record.dtype)).reshape(record.shape)


def wrong_weights(
    artifact: LoadedArtifact, made: Mapping[str, torch.Tensor], say: Callable[[int, int], None]
) -> Iterator[WrongWeight]:
    """The weights of the artifact that differ from `made`, in the order of the manifest. What `made` lacks is left."""
    records = artifact.manifest.weights
    known = set(made)
    for number, (name, record) in enumerate(records.items()):
        say(number, len(records))
        if name not in known:
            continue
        wrong = compare_weight(name, record, stored(artifact, name), made[name])
        if wrong is not None:
            yield wrong
    say(len(records), len(records))


def compare_weight(name: str, record: TensorRecord, have: torch.Tensor, want: torch.Tensor) -> WrongWeight | None:
    """None if both are the same up to `TABLE_ULPS`."""
    if want.shape != have.shape or want.dtype != have.dtype:
        place = Worst(name, (), float(want.numel()), float(have.numel()))
        return WrongWeight(name, record, have, want, have.numel(), place)
    if torch.equal(_bits(want), _bits(have)):
        return None
    a, b = want.double(), have.double()
    differ = (a != b) & ~(a.isnan() & b.isnan())
    if want.is_floating_point() and bool(differ.any()):
        largest = float(a.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max())
        differ &= ~((a - b).abs() <= TABLE_ULPS * torch.finfo(want.dtype).eps * largest)
    wrong = int(differ.sum())
    if not wrong:
        return None
    index = tuple(int(i) for i in torch.unravel_index(differ.reshape(-1).double().argmax(), differ.shape))
    return WrongWeight(name, record, have, want, wrong, Worst(name, index, float(a[index]), float(b[index])))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
