"""From an artifact folder to a running engine: the runtime's only place that joins all of its parts."""

from __future__ import annotations

import logging

from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_options import EngineOptions, ModelLimits
from inferir.runtime.executor.executors import executor_for
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.cache_size import plan_blocks
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.loader import LoadedArtifact
from inferir.runtime.machine import thread_count
from inferir.runtime.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def build_engine(artifact: LoadedArtifact, options: EngineOptions | None = None) -> Engine:
    """An engine over a loaded artifact; without a tokenizer in it, the engine takes and gives token ids only."""
    options = options or EngineOptions()
    manifest = artifact.manifest
    scheduler = options.scheduler(manifest.limits)
    max_model_len = options.model_len(manifest.limits)
    budget = options.kv_bytes()
    threads = thread_count(options.threads)
    num_blocks = plan_blocks(
        manifest.kv,
        budget=budget,
        max_seqs=scheduler.max_seqs,
        max_model_len=max_model_len,
        step_tokens=scheduler.max_tokens,
    )
    has_tokenizer = (artifact.tokenizer_dir / "tokenizer.json").exists()
    tokenizer = Tokenizer.load(artifact.tokenizer_dir) if has_tokenizer else None
    limits = ModelLimits(manifest.model.vocab_size, frozenset(manifest.model.eos_token_ids), max_model_len)
    log.info("%d threads, %d KV blocks, steps of %d tokens", threads, num_blocks, scheduler.max_tokens)
    executor = executor_for(manifest.target)(artifact, num_blocks, threads)
    cache = KVCache(manifest.kv, BlockPool(num_blocks), prefix_caching=options.enable_prefix_caching)
    return Engine(executor, cache, scheduler, limits, tokenizer, block_size=manifest.limits.block_size)
