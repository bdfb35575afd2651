"""Whether the cache still holds what was written to it when a step reads it.

What a token's keys and values are depends on the text up to it alone, and bit by bit so (batch invariance). So the
first content that is seen of a text is what every later step must find in its slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.manifest import KVArg
from inferir.verify.step_check import StepCheck, Text, WrongInput
from inferir.verify.step_record import Array, SubmittedStep

CONTENT = "KV cache content"


@dataclass
class ContentCheck:
    """Compares what a step reads with what steps before have read. executor: one with its caches in this memory."""

    executor: Any
    groups: tuple[KVCacheGroup, ...]
    _known: dict[tuple[str, Text], bytes] = field(default_factory=dict)

    def __call__(self, check: StepCheck, step: SubmittedStep) -> Iterator[WrongInput]:
        """What has changed of the positions before those that the step computes."""
        for number, group in enumerate(self.groups):
            for part in step.parts:
                read = range(max(0, int(group.spec.reads.first(part.start))), part.start)
                if not read:
                    continue
                size = group.spec.block_size
                slots = np.array([part.blocks[number][at // size] * size + at % size for at in read])
                for name, layer, tensor in group.caches():
                    cache = self.executor.cache(KVArg(number, layer, tensor.role))
                    rows = slot_rows(cache, tensor.shape, tensor.dtype.itemsize, tensor.role, slots, size)
                    for at, slot, row in zip(read, slots.tolist(), rows, strict=True):
                        digest = hashlib.blake2b(row.tobytes(), digest_size=12).digest()
                        key = name, check.text(part, at)
                        if self._known.setdefault(key, digest) != digest:
                            text = f"{name}: position {at} is not what it was, in slot {slot}"
                            yield WrongInput(CONTENT, step.number, (layer, at), slot, slot, text)
                            return


def slot_rows(cache: Array, shape: tuple[int, ...], itemsize: int, role: str, slots: Array, block_size: int) -> Array:
    """What the bytes `cache` of a tensor hold for each slot: [slots, elements of a token] unsigned integers."""
    values = cache.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[itemsize]).reshape(-1, *shape)
    block, offset = slots // block_size, slots % block_size
    pack = shape[-1]
    found = values[block, :, :, offset, :] if role == "k" else values[block, :, offset // pack, :, offset % pack]
    out: Array = found.reshape(len(slots), -1)
    return out
