"""Logits of every position, for checking compiled numerics against a reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inferir.ir.errors import EngineError
from inferir.runtime.batch.sampling_rows import leave_rows
from inferir.runtime.engine.engine import Engine
from inferir.runtime.executor.base import Step
from inferir.runtime.requests.request import Scheduled
from inferir.runtime.sampling.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32]


def sequence_logits(engine: Engine, sequences: Sequence[Sequence[int]], chunk: int | None = None) -> list[Logits]:
    """Logits [tokens, vocabulary] of each sequence, computed side by side, at most `chunk` tokens of each per step.

    `chunk` (default: as many as fit a step) chooses the bucket: with 1, a step is a decode step of `len(sequences)`
    tokens. Where a step has more rows than the artifact can return at once, it is run again for the other rows; it
    writes the same cache entries each time. Raises `EngineError` unless the engine is idle and all the sequences fit
    into a step and into the cache together.
    """
    if engine.has_unfinished:
        raise EngineError("logits can be computed only while no request is being served")
    options = engine.scheduler.options
    if not 1 <= len(sequences) <= options.max_seqs:
        raise EngineError(f"give 1 to {options.max_seqs} sequences, not {len(sequences)}")
    limit = options.max_tokens // len(sequences)
    chunk = limit if chunk is None else chunk
    if not 1 <= chunk <= limit:
        raise EngineError(f"chunk must be from 1 to {limit} tokens for {len(sequences)} sequences, not {chunk}")
    requests = [engine.requests.make(s, SamplingParams(temperature=0.0))[0] for s in sequences]
    parts: dict[int, list[Logits]] = {i: [] for i in range(len(requests))}
    try:
        while any(r.remaining for r in requests):
            active = [(i, Scheduled(r, min(chunk, r.remaining))) for i, r in enumerate(requests) if r.remaining]
            rows = _step(engine, [s for _, s in active])
            start = 0
            for index, scheduled in active:
                parts[index].append(rows[start : start + scheduled.tokens])
                start += scheduled.tokens
    finally:
        for request in requests:
            engine.batch.release(request)
            engine.kv.free(request.blocks)
    return [np.concatenate(parts[i]) for i in range(len(requests))]


def _step(engine: Engine, scheduled: list[Scheduled]) -> Logits:
    """Run one step and return the logits of all its tokens."""
    for s in scheduled:
        if not engine.kv.reserve(s.request.blocks, s.request.computed, s.request.computed + s.tokens):
            raise EngineError("the sequences do not fit into the KV cache together; give it more memory or less text")
    step = engine.batch.prepare(scheduled)
    executor, inputs = engine.executor, engine.executor.inputs
    width = len(inputs["rows"])
    parts = []
    for start in range(0, step.counts.tokens, width):
        count = min(width, step.counts.tokens - start)
        inputs["rows"][:count] = np.arange(start, start + count)
        leave_rows(inputs, 0, count)
        counts = step.counts._replace(rows=count, argmax=0)
        parts.append(executor.wait(executor.submit(Step(step.descriptor, counts))).logits.copy())
    for s in scheduled:
        s.request.computed += s.tokens
    return np.concatenate(parts)
