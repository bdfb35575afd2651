"""What a compile is asked for, what it reports, and what its stages hand to one another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from inferir.compile.tuning_use import TuningUse
from inferir.frontend.facts import ModelFacts
from inferir.ir.contract.manifest import Decision, Manifest
from inferir.ir.contract.symbols import Limits
from inferir.ir.graph.graph import Graph
from inferir.ir.system.quantities import seconds

log = logging.getLogger(__name__)

WEIGHTS = "weights"
LONGEST = 8192  # default limit of the context where the model allows more


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What an artifact is compiled for.

    dtype: "auto", "bf16" or "f32"; target: a name of `ir.target.TARGETS` or "host"; max_model_len: tokens per sequence
    (None: the model's, at most 8192); max_num_seqs and max_num_batched_tokens bound a step; block_size: token slots per
    KV block; buckets: ranges of step sizes such as "1,2-8,9-2048" (None: the defaults); opt_level 0 to 3;
    enabled_passes (of other distributions) and disabled_passes by name; tuning: a file of records that `inferir tune`
    wrote, whose tiles replace the default ones;
    override: a folder whose files replace stages of code generation (`inferir.codegen.stages`);
    jobs: build processes (None: one per core); trace_check: compare the captured graph with the model before compiling.
    """

    dtype: str = "auto"
    target: str = "host"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 32
    buckets: str | None = None
    opt_level: int = 2
    enabled_passes: frozenset[str] = frozenset()
    disabled_passes: frozenset[str] = frozenset()
    tuning: Path | None = None
    override: Path | None = None
    jobs: int | None = None
    trace_check: bool = True
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def limits(self) -> Limits:
        assert self.max_model_len is not None
        return Limits(
            max_model_len=self.max_model_len,
            max_tokens=self.max_num_batched_tokens,
            max_seqs=self.max_num_seqs,
            max_rows=self.max_num_seqs,
            block_size=self.block_size,
        )


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """What to show while compiling: the graph after pass `print_after` ("all": every one), through `emit`; `dump_dir`
    receives all graphs, and every stage of every bucket's code.
    """

    print_after: str | None = None
    dump_dir: Path | None = None
    emit: Callable[[str], None] = print


class Progress(Protocol):
    """Told about every phase: `done` of `total` steps."""

    def __call__(self, phase: str, done: int, total: int) -> None: ...


@contextmanager
def one_step(phase: str, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` of a phase that has one step, the block."""
    if progress is not None:
        progress(phase, 0, 1)
    yield
    if progress is not None:
        progress(phase, 1, 1)


@dataclass
class CompileReport:
    """What a compile did: seconds per phase, and what tuning records gave."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)
    manifest: Manifest | None = None
    tuning: TuningUse | None = None

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def phase(self, name: str, progress: Progress | None = None) -> Iterator[None]:
        """Time the block; progress: told of it as one step."""
        start = time.perf_counter()
        with one_step(name, progress):
            yield
        self.seconds[name] = time.perf_counter() - start
        log.info("%s: phase %s took %s", self.path, name, seconds(self.seconds[name]))


@dataclass(frozen=True)
class Captured:
    """What the frontend delivers: graph over checkpoint weights, facts, the stored trace, the tokenizer's files.

    decisions: what decides numbers and texts, and where it was found.
    """

    graph: Graph
    facts: ModelFacts
    trace: Mapping[str, bytes]
    tokenizer: Mapping[str, bytes]
    tokenizer_size: int
    decisions: tuple[Decision, ...] = ()
