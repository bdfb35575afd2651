"""What the parameters of a kernel stand for, as its generator says it.

The compiler makes a `manifest.Arg` of each once the calls of a step are planned: where it lies depends on the call.
"""

from __future__ import annotations

import msgspec


class Operand(msgspec.Struct, frozen=True, array_like=True, tag="operand"):
    """Operand `index` of the region."""

    index: int


class Result(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """Result `index` of the region; a cache that is written in place is its operand, not a result."""

    index: int


class Workspace(msgspec.Struct, frozen=True, array_like=True, tag="workspace"):
    """Memory that is the region's own while its kernels run, from byte `offset` on, a multiple of 64."""

    offset: int = 0


class Resident(msgspec.Struct, frozen=True, array_like=True, tag="resident"):
    """The resident buffer of that name (`manifest.Manifest.residents`)."""

    name: str


class Of(msgspec.Struct, frozen=True, array_like=True, tag="of"):
    """What parameter `param` stands for in the next operation of that anchor, in the next step if there is none left in
    this one: what a kernel may prefetch."""

    anchor: str
    param: str


KernelArg = Operand | Result | Workspace | Resident | Of
