"""The first step input that the runtime gets wrong, and what it finds changed in the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from inferir.ir.contract.kv_groups import plan_slabs, sequence_blocks
from inferir.ir.errors import EngineError
from inferir.runtime.build_engine import build_engine
from inferir.runtime.engine.engine_options import EngineOptions
from inferir.runtime.loader import LoadedArtifact
from inferir.verify import reproduce_runtime
from inferir.verify.findings import Finding, Worst
from inferir.verify.kv_content import CONTENT, ContentCheck
from inferir.verify.reproduce_runtime import RuntimeCase
from inferir.verify.reproducer import ReproducerFolder
from inferir.verify.runtime_scenario import ENGINE, run_scenario, scenario
from inferir.verify.step_check import WrongInput


def runtime_finding(
    artifact: LoadedArtifact,
    pool: Sequence[Sequence[int]],
    threads: int,
    reproducers: ReproducerFolder,
    say: Callable[[int, int], None],
) -> tuple[Finding | None, int]:
    """Serve requests with all the memory that they need, then with so little that they make way for each other.

    The first wrong step, and how many steps were looked at.
    """
    manifest = artifact.manifest
    steps = 0
    longest = min(manifest.limits.max_model_len, 4 * manifest.limits.block_size)
    tight = (1 + 2 * sequence_blocks(manifest.kv, longest)) * plan_slabs(manifest.kv).block_bytes
    for number, memory in enumerate((None, tight) if manifest.kv else (None,)):
        say(number, 2)
        engine = build_engine(artifact, EngineOptions(threads=threads, kv_cache_memory=memory))
        try:
            block, most = manifest.limits.block_size, engine.scheduler.options.max_seqs
            wanted = scenario(pool, block, engine.capacity, most, probes=memory is None)
            case = RuntimeCase.of(wanted, engine, manifest)
            content = ContentCheck(engine.executor, manifest.kv) if hasattr(engine.executor, "cache") else None
            _, wrong, ran = run_scenario(engine, wanted, content)
        finally:
            with contextlib.suppress(EngineError):  # of an engine that is at fault
                engine.close()
        steps += ran
        if wrong:
            return _finding(wrong, case, reproducers), steps
    say(2, 2)
    return None, steps


def _finding(wrong: Sequence[WrongInput], case: RuntimeCase, reproducers: ReproducerFolder) -> Finding:
    first = wrong[0]
    again = case.run()
    notes: list[str] = []
    if again or first.name != CONTENT:
        what = (
            "serves the prompts in scenario.json with the runtime of the installed Inferir, without kernels, and\n"
            "holds the inputs of every step against a simulation."
        )
        files = {reproduce_runtime.SCENARIO: reproduce_runtime.encode(case)}
        reproducer = str(reproducers.write(f"runtime {first.name}", what, "reproduce_runtime", files))
        if not again:
            notes.append("without kernels all inputs are as expected: what the kernels returned matters")
    else:
        reproducer = None
        notes.append("the inputs of all steps are as expected: something else writes to the cache")
    others = dict.fromkeys(w.name for w in wrong if w.name != first.name)
    if others:
        notes.append(f"in the same step: {', '.join(others)}")
    at = ", ".join(map(str, first.index))
    return Finding(
        kind="runtime",
        name=first.name,
        where=f"step {first.step}" + (f", {first.name}[{at}]" if first.name != ENGINE else ""),
        measured=first.text if first.name == ENGINE else f"is {first.found}, expected {first.expected}: {first.text}",
        worst=None
        if first.name == ENGINE
        else Worst(first.name, first.index, float(first.expected), float(first.found)),
        notes=tuple(notes),
        reproducer=reproducer,
    )
