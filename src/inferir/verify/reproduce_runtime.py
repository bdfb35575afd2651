"""Whether the runtime prepares steps as it should: what the reproducer of a step input runs.

    scenario.json   prompts, in which order they run, and the model's caches and limits

The engine is the installed one, over an executor that computes nothing and answers with tokens of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import decode_spec
from inferir.ir.contract.manifest import IORecord, Manifest
from inferir.ir.contract.split_kv import Splitting
from inferir.ir.contract.symbols import Limits
from inferir.ir.graph.dtypes import DType
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_options import EngineOptions, ModelLimits
from inferir.runtime.executor.base import OperationTimes, Step, StepOutputs
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.kv_cache import KVCache
from inferir.verify.runtime_scenario import Scenario, run_scenario
from inferir.verify.step_check import WrongInput

SCENARIO = "scenario.json"


class RuntimeCase(msgspec.Struct, frozen=True, kw_only=True):
    """An engine without kernels, and what it is asked. tiles: by tokens of a step, what a work item has at most."""

    scenario: Scenario
    groups: tuple[KVCacheGroup, ...]
    limits: Limits
    inputs: tuple[IORecord, ...]
    vocabulary: int
    num_blocks: int
    tiles: dict[int, int]
    splitting: tuple[int, int, int]

    @staticmethod
    def of(scenario: Scenario, engine: Engine, manifest: Manifest) -> RuntimeCase:
        tiles = {t: b.attn_tile for b in manifest.buckets for t in range(b.lo, b.hi)}
        s = engine.executor.splitting
        return RuntimeCase(
            scenario=scenario,
            groups=manifest.kv,
            limits=manifest.limits,
            inputs=manifest.inputs,
            vocabulary=manifest.model.vocab_size,
            num_blocks=engine.kv.pool.num_blocks,
            tiles=tiles,
            splitting=(s.threads, s.kv_heads, s.rows),
        )

    def run(self) -> list[WrongInput]:
        """What the engine of this installation submits that is wrong."""
        options = EngineOptions().scheduler(self.limits)
        cache = KVCache(self.groups, BlockPool(self.num_blocks), prefix_caching=True)
        limits = ModelLimits(self.vocabulary, frozenset(), self.limits.max_model_len)
        engine = Engine(IdleExecutor(self), cache, options, limits, None, block_size=self.limits.block_size)
        _, wrong, _ = run_scenario(engine, self.scenario)
        return wrong


class IdleExecutor:
    """Has the inputs that an artifact has, and computes nothing."""

    kv_bytes = kv_regions = 0
    threads = 1
    operation_times: OperationTimes | None = None

    def __init__(self, case: RuntimeCase) -> None:
        sizes = case.limits.bounds
        self.inputs: dict[str, npt.NDArray[Any]] = {
            r.name: np.zeros([d if isinstance(d, int) else sizes[d] for d in r.shape], _KINDS[r.dtype])
            for r in case.inputs
        }
        self.residents: dict[str, npt.NDArray[Any]] = {}
        self.splitting = Splitting(*case.splitting)
        self._case = case

    def time_operations(self, wanted: bool) -> None:
        pass

    def touch_kv(self, region: int, first: int, stop: int) -> None:
        pass

    def attn_tile(self, descriptor: BatchDescriptor) -> int:
        return self._case.tiles[descriptor.tokens]

    def submit(self, step: Step) -> Step:
        return step

    def wait(self, handle: Step) -> StepOutputs:
        counts = handle.counts
        tokens, argmax = (self._tokens(name, n) for name, n in (("rows", counts.rows), ("argmax_rows", counts.argmax)))
        return StepOutputs(tokens, np.zeros((counts.rows, self._case.vocabulary), np.float32), argmax)

    def _tokens(self, name: str, count: int) -> npt.NDArray[np.int32]:
        if name not in self.inputs:
            return np.zeros((0, 1), np.int32)
        rows = self.inputs[name][:count]
        mixed = self.inputs["ids"][rows].astype(np.int64) * 7919 + self.inputs["positions"][rows] * 104729 + 1
        out: npt.NDArray[np.int32] = (mixed % self._case.vocabulary).astype(np.int32)[:, None]
        return out

    def close(self) -> None:
        pass


_KINDS: Mapping[DType, Any] = {DType.I32: np.int32, DType.F32: np.float32}


def encode(case: RuntimeCase) -> bytes:
    return msgspec.json.format(msgspec.json.encode(case))


def reproduce(folder: Path) -> int:
    """Run the reproducer in `folder` and say what came out: 1 while the fault is there, else 0."""
    case = msgspec.json.decode((folder / SCENARIO).read_bytes(), type=RuntimeCase, dec_hook=decode_spec)
    wrong = case.run()
    for each in wrong[:5]:
        at = ", ".join(map(str, each.index))
        print(f"step {each.step}: {each.name}[{at}] is {each.found}, expected {each.expected}: {each.text}")
    print("FAULT" if wrong else "fixed")
    return int(bool(wrong))
