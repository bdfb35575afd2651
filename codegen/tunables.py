"""What a tuner asks of a backend: the matrix products of a model, choices for each, and libraries to race them.

A choice decides how fast a kernel is, never what it computes: results have the same bits whatever the choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inferir.codegen.backend import Backend, BuildJob, Context
from inferir.codegen.cache.cache_key import key_fields
from inferir.codegen.cache.compile_cache import CompileCache, Entry
from inferir.codegen.cache.source_hash import keyed
from inferir.ir.contract.kernel_args import KernelArg
from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError
from inferir.ir.graph.graph import Node

KIND = "tiles"


@dataclass(frozen=True, order=True)
class Product:
    """What is chosen for: x [`lo` to `most` rows, `k`] times [`k`, `n`] in `dtype`, "bf16" or "f32", with the weight in
    `format`.
    """

    k: int
    n: int
    dtype: str
    interleave: int
    lo: int
    most: int
    format: str = "panels"

    def __str__(self) -> str:
        rows = str(self.lo) if self.lo == self.most else f"{self.lo}-{self.most}"
        return f"{self.k} to {self.n} {self.dtype}, {rows} {'row' if self.most == 1 else 'rows'}"


@dataclass(frozen=True)
class Race:
    """The module of one product: kernel i computes `region` with `choices[i]`, and the first choice is the default.

    `args` says what a kernel's parameters stand for; `row_words` and `scratch_bytes` are what the
    step driver needs to know.
    """

    product: Product
    region: Node
    choices: tuple[Any, ...]
    source: str
    args: tuple[KernelArg, ...]
    row_words: int
    scratch_bytes: int


class Tuning(Protocol):
    """A backend's choices. `version` names what decides how fast its products are."""

    @property
    def version(self) -> str: ...

    def products(self, regions: Iterable[Node], context: Context) -> dict[Product, Node]:
        """The products of a bucket, each with the first region that computes it."""

    def candidates(self, product: Product, target: Target) -> tuple[Any, ...]:
        """Choices worth measuring, the backend's own first."""

    def race(self, product: Product, region: Node, context: Context) -> Race:
        """A kernel per candidate. Raises `CodegenError`."""

    def record(self, choice: Any) -> dict[str, int]:
        """A choice by the names of its sizes, as files keep it."""

    def choice(self, record: Mapping[str, int]) -> Any:
        """What `record` made a record of. Raises `TuningError` for what can be no choice."""


def tuning_of(backend: Backend) -> Tuning:
    """The choices of a backend, which has them as its attribute `tuning`. Raises `TuningError` if it has none."""
    found: Tuning | None = getattr(backend, "tuning", None)
    if found is None:
        raise TuningError(f"the {backend.name} backend has nothing to tune")
    return found


def build_races(
    backend: Backend, races: Sequence[Race], target: Target, cache: CompileCache, jobs: int = 1
) -> list[bytes]:
    """The libraries of all races, from the cache where they are stored. Raises `CodegenError` and `CacheError`."""
    library = f"module{backend.suffix}"
    generator = tuning_of(backend).version
    keys = [
        keyed(
            source=hashlib.sha256(race.source.encode()).hexdigest(),
            product=key_fields(race.product),
            candidates=len(race.choices),
            target=target.record(),
            generator=generator,
        )
        for race in races
    ]
    found = [cache.get(KIND, key) for key in keys]
    missing = [i for i, entry in enumerate(found) if not isinstance(entry, Entry)]
    built: dict[int, bytes] = {}
    if missing:
        cache.require_writable()
        work = [BuildJob(str(races[i].product), races[i].source, target) for i in missing]
        built = dict(zip(missing, backend.build(work, jobs), strict=True))
        for i, code in built.items():
            cache.put(KIND, keys[i], {library: code})
    return [entry.files[library] if isinstance(entry, Entry) else built[i] for i, entry in enumerate(found)]
