"""Memory of an artifact before it is compiled: the frontend and the passes decide all of it, so no kernel is built."""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.backend import BucketMeta
from inferir.codegen.backends import backend_for, target_named
from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.codegen.library import distinct, lower_bucket
from inferir.codegen.weights.packing import total_bytes
from inferir.compile.compile_types import CompileOptions, DebugOptions
from inferir.compile.compiler import capture, contexts_of, lower, resolve
from inferir.frontend.facts import ModelFacts
from inferir.frontend.source.model_source import load_source
from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs, sequence_blocks
from inferir.ir.contract.target import Target
from inferir.ir.errors import InferirError
from inferir.passes.manager import PipelineResult


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What serving a model takes, in bytes.

    checkpoint_bytes: the model's own tensors in the served type, tied ones once; weight_bytes: what they become when
    they are packed, padding and tables included. scratch_bytes is per thread. io_bytes: inputs and outputs of a step.
    """

    facts: ModelFacts
    target: Target
    options: CompileOptions
    checkpoint_bytes: int
    weight_bytes: int
    arena_bytes: int
    io_bytes: int
    scratch_bytes: int
    kv: tuple[KVCacheGroup, ...]

    def fixed_bytes(self, threads: int) -> int:
        """Everything but the KV cache."""
        return self.weight_bytes + self.arena_bytes + self.io_bytes + threads * self.scratch_bytes

    def fit(self, memory: int, threads: int) -> Fit:
        """What fits into `memory` bytes. Raises `InferirError` naming both numbers if not even one block does."""
        block, smallest = plan_slabs(self.kv).block_bytes, 1 + len(self.kv)  # one is the null block
        blocks = (memory - self.fixed_bytes(threads)) // block
        if blocks < smallest:
            least = self.fixed_bytes(threads) + smallest * block
            raise InferirError(f"{memory} bytes are too little: the model needs at least {least}")
        length = self.options.limits.max_model_len
        each = sequence_blocks(self.kv, length)
        return Fit(memory, blocks, (blocks - 1) * length // each, (blocks - 1) // each)


@dataclass(frozen=True)
class Fit:
    """In `memory` bytes: KV blocks (the null block included), their tokens, and how many sequences of full length. The
    tokens are those of such sequences.
    """

    memory: int
    blocks: int
    tokens: int
    sequences_of_max_model_len: int


def plan_memory(spec: str, options: CompileOptions, cache: CompileCache | None = None) -> MemoryPlan:
    """Trace the model (or take its graph from the cache), run the passes and add up. Raises an `InferirError`."""
    cache = cache if cache is not None else CompileCache.from_env(CacheOptions())
    target = target_named(options.target)
    source = load_source(spec, options.dtype, options.revision, options.trust_remote_code)
    captured = capture(source, options, cache)
    options = resolve(options, captured.facts)
    result = lower(captured, options, target, DebugOptions())
    metas = _metas(result, options, target)
    return MemoryPlan(
        facts=captured.facts,
        target=target,
        options=options,
        checkpoint_bytes=sum(v.type.nbytes({}) for v in captured.graph.weights().values()),
        weight_bytes=total_bytes(v.type for v in result.graph.weights().values()),
        arena_bytes=result.plan.arena_bytes + max(m.workspace_bytes for m in metas),
        io_bytes=_io_bytes(result, options),
        scratch_bytes=max(m.scratch_bytes for m in metas),
        kv=result.kv,
    )


def _io_bytes(result: PipelineResult, options: CompileOptions) -> int:
    """Inputs and outputs at the largest values of their symbols; the KV cache is counted apart."""
    inputs = sum(v.type.nbytes(options.limits.bounds) for v in result.step_inputs.values())
    return inputs + sum(o.nbytes for o in result.plan.outputs)


def _metas(result: PipelineResult, options: CompileOptions, target: Target) -> list[BucketMeta]:
    """What the kernels of every bucket need, read off their text."""
    regions, backend = distinct(op.region for op in result.plan.ops), backend_for(target)
    return [lower_bucket(backend, regions, context).meta for context in contexts_of(options, target)]
