"""`inferir plan MODEL`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from inferir.cli import arguments as a
from inferir.cli.console import plain, print_json, show, table
from inferir.cli.shared_options import Fields, compile_fields, expanded
from inferir.cli.units import size_bytes
from inferir.ir.system import extras
from inferir.ir.system.quantities import count, size

if TYPE_CHECKING:
    from inferir.compile.plan_memory import Fit, MemoryPlan


@expanded(options=compile_fields)
def plan(
    model: a.Model,
    *,
    options: Fields,
    memory: Annotated[
        str | None, a.option("SIZE", 'Say what fits into this memory, such as "8GiB". Default: what is free now.')
    ] = None,
    threads: a.Threads = None,
    no_cache: a.NoCache = False,
    json: a.Json = False,
) -> None:
    """Say how much memory serving a model will take, without compiling it."""
    extras.require("plan", "compile")
    from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
    from inferir.compile.compiler import CompileOptions
    from inferir.compile.plan_memory import plan_memory
    from inferir.runtime.machine import available_bytes, thread_count

    budget = available_bytes() if memory is None else size_bytes(memory, "--memory")
    planned = plan_memory(model, CompileOptions(**options), CompileCache.from_env(CacheOptions(enabled=not no_cache)))
    count_ = thread_count(threads)
    fit = planned.fit(budget, count_)
    if json:
        print_json(_as_json(planned, fit, count_))
    else:
        _print(planned, fit, count_, "free now" if memory is None else "as asked")


def _as_json(plan: MemoryPlan, fit: Fit, threads: int) -> dict[str, Any]:
    from inferir.inspect.memory_table import kv_json

    return {
        "model": plan.facts.name,
        "parameters": plan.facts.parameters,
        "dtype": plan.facts.dtype.value,
        "target": plan.target.name,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "weight_bytes": plan.weight_bytes,
        "arena_bytes": plan.arena_bytes,
        "io_bytes": plan.io_bytes,
        "threads": threads,
        "scratch_bytes_per_thread": plan.scratch_bytes,
        **kv_json(plan.kv, plan.options.limits),
        "max_model_len": plan.options.max_model_len,
        "fixed_bytes": plan.fixed_bytes(threads),
        "fit": asdict(fit),
    }


def _print(plan: MemoryPlan, fit: Fit, threads: int, why: str) -> None:
    from inferir.inspect.memory_table import kv_rows

    extra = plan.weight_bytes - plan.checkpoint_bytes
    rows = [
        (
            "weights",
            size(plan.weight_bytes),
            f"packed; {_signed(extra)} against the checkpoint's {size(plan.checkpoint_bytes)}",
        ),
        (
            "arena",
            size(plan.arena_bytes),
            f"intermediate values of a step of {plan.options.max_num_batched_tokens:,} tokens",
        ),
        ("step inputs and outputs", size(plan.io_bytes), f"logits of {plan.options.max_num_seqs} rows and less"),
        ("scratch", size(threads * plan.scratch_bytes), f"{count(threads, 'thread')} of {size(plan.scratch_bytes)}"),
        ("all but the KV cache", size(plan.fixed_bytes(threads)), ""),
        *kv_rows(plan.kv, plan.options.limits),
    ]
    facts = plan.facts
    show(
        plain(f"{facts.name}: {facts.architecture}, {facts.parameters:,} parameters as {facts.dtype.value}"),
        table("", ("what", "memory", "note"), rows, right=("memory",)),
        plain(
            f"{size(fit.memory)} ({why}) hold {fit.tokens:,} tokens of KV cache: {count(fit.blocks, 'block')}, or "
            f"{count(fit.sequences_of_max_model_len, 'sequence')} of {plan.options.max_model_len:,} tokens."
        ),
    )


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes >= 0 else '-'}{size(abs(nbytes))}"
