"""The composition root: model in, artifact out.

    load source → trace → passes → plan → one library per bucket → weights → manifest

Every stage asks the compile cache first: the captured graph by what decides it, bucket libraries by their regions,
packed weights by transform and checkpoint content. An artifact is written beside its place and renamed, so there is
never half of one.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from inferir.codegen.backend import Context
from inferir.codegen.backends import backend_for, target_named
from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.codegen.cache.through import frontend_key, through_cache
from inferir.codegen.library import BuiltBucket, build_buckets, dump_stages
from inferir.codegen.stages import read_stages
from inferir.codegen.tunables import tuning_of
from inferir.codegen.weights import packing
from inferir.compile.artifact_folder import artifact_folder, check_place
from inferir.compile.assemble import assemble
from inferir.compile.compile_types import (
    LONGEST,
    WEIGHTS,
    Captured,
    CompileOptions,
    CompileReport,
    DebugOptions,
    Progress,
)
from inferir.compile.plugin_use import plugins_used
from inferir.compile.text_ends import check_vocabulary, join_ends
from inferir.compile.tuning_records import TuningRecord, read_records
from inferir.compile.tuning_use import all_products, use_records
from inferir.frontend.facts import ModelFacts
from inferir.frontend.source.decisions import decisions
from inferir.frontend.source.export_tokenizer import TokenizerFacts
from inferir.frontend.source.model_source import ModelSource, load_source
from inferir.frontend.tokenizer.tokenizers_library import TokenizerWarning
from inferir.ir.contract.bucket import default_buckets, parse_buckets
from inferir.ir.contract.manifest import FileRecord, TensorRecord
from inferir.ir.contract.target import Target
from inferir.ir.errors import InferirError
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.system.held_folder import remove_abandoned_scratch, scratch_folder
from inferir.passes.context import PassOptions
from inferir.passes.manager import PipelineResult, run_pipeline

TOKENIZER_FACTS = "facts.json"

__all__ = ["CompileOptions", "CompileReport", "DebugOptions", "Progress", "compile_model"]


def compile_model(
    spec: str,
    out: str | os.PathLike[str],
    options: CompileOptions | None = None,
    *,
    cache: CompileCache | None = None,
    debug: DebugOptions | None = None,
    progress: Progress | None = None,
) -> CompileReport:
    """Compile the model `spec` (folder, GGUF file or hub id) into the artifact folder `out`.

    An artifact that is there is replaced.

    Raises an `InferirError` of one line; nothing is left at `out` then that was not there before.
    """
    options, debug = options or CompileOptions(), debug or DebugOptions()
    cache = cache if cache is not None else CompileCache.from_env(CacheOptions())
    say = progress or (lambda phase, done, total: None)
    report = CompileReport(Path(out))
    target = target_named(options.target)
    check_place(report.path)
    for kind in ("trace", "template", "build"):
        remove_abandoned_scratch(kind)
    tuning = read_records(options.tuning) if options.tuning is not None else ()
    with report.phase("load"):
        source = load_source(spec, options.dtype, options.revision, options.trust_remote_code)
    with report.phase("trace", say):
        captured = capture(source, options, cache)
    options = resolve(options, captured.facts)
    with report.phase("passes", say):
        result = lower(captured, options, target, debug)
    with report.phase("kernels"):
        built = build(result, options, target, cache, say, report, tuning, debug.dump_dir)
    with artifact_folder(report.path) as folder:
        with report.phase("weights"):
            records, files = write_weights(folder, captured, source, result, cache, say)
        with report.phase("write", say):
            plugins = plugins_used(captured, result, built, target)
            report.manifest = assemble(folder, captured, result, built, records, files, options, target, plugins)
    return report


def resolve(options: CompileOptions, facts: ModelFacts) -> CompileOptions:
    """Fill in what the model decides. Raises `InferirError` naming an option that does not fit."""
    longest = facts.max_position_embeddings or LONGEST
    length = options.max_model_len or min(longest, LONGEST)
    if facts.max_position_embeddings and length > facts.max_position_embeddings:
        raise InferirError(f"max_model_len is {length}, the model was made for {facts.max_position_embeddings}")
    tokens = min(options.max_num_batched_tokens, max(length, options.max_num_seqs))
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
        if getattr(options, name) < 1:
            raise InferirError(f"{name} is {getattr(options, name)}, not positive")
    if options.block_size % 16:
        raise InferirError(f"block_size is {options.block_size}, not a multiple of 16")
    return replace(options, max_model_len=length, max_num_batched_tokens=tokens)


def capture(source: ModelSource, options: CompileOptions, cache: CompileCache) -> Captured:
    """Graph, facts and tokenizer, from the cache or from the model: traced, and compared with it unless told not to."""

    def make_trace(folder: Path) -> None:
        from inferir.frontend.capture.trace import trace
        from inferir.frontend.capture.trace_check import check_trace

        traced = trace(source)
        if options.trace_check:
            check_trace(traced, source)
        traced.save(folder)

    def make_tokenizer(folder: Path) -> None:
        from inferir.frontend.source.export_tokenizer import export_tokenizer

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            described = export_tokenizer(source, folder)
        own = tuple(dict.fromkeys(str(w.message) for w in said if w.category.__module__.startswith("inferir.")))
        (folder / TOKENIZER_FACTS).write_bytes(msgspec.json.encode(msgspec.structs.replace(described, warnings=own)))

    digest = source.description_digest()
    trace_files = through_cache(cache, "graph", frontend_key(model=digest, trace_check=options.trace_check), make_trace)
    tokenizer = through_cache(
        cache, "tokenizer", frontend_key(model=digest, files=source.tokenizer_digest()), make_tokenizer
    )
    facts = msgspec.structs.replace(msgspec.json.decode(trace_files["facts.json"], type=ModelFacts), name=source.name)
    graph = parse_graph(trace_files["graph.ir"].decode())
    files = {n: f for n, f in tokenizer.items() if n != TOKENIZER_FACTS}
    described = msgspec.json.decode(tokenizer[TOKENIZER_FACTS], type=TokenizerFacts)
    for text in described.warnings:  # of this compile or the one that filled the cache
        warnings.warn(text, TokenizerWarning, stacklevel=2)
    facts, ends = join_ends(facts, described, files)
    check_vocabulary(facts, described)
    found = (*decisions(source, options.dtype), *described.decisions, *ends)
    return Captured(graph, facts, trace_files, files, described.size, found)


def lower(captured: Captured, options: CompileOptions, target: Target, debug: DebugOptions) -> PipelineResult:

    def show(name: str, graph: Graph) -> None:
        if debug.print_after in ("all", name):
            debug.emit(f"// after {name}\n{print_graph(graph)}")

    given = PassOptions(
        opt_level=options.opt_level,
        enabled=options.enabled_passes,
        disabled=options.disabled_passes,
        limits=options.limits,
        vocab_size=min(captured.facts.vocab_size, captured.tokenizer_size),
        features=frozenset(target.features),
    )
    return run_pipeline(
        captured.graph,
        None,
        given,
        print_after=show if debug.print_after else None,
        dump_dir=debug.dump_dir,
    )


def contexts_of(options: CompileOptions, target: Target) -> list[Context]:
    """What the code of every bucket is made for."""
    most = options.max_num_batched_tokens
    buckets = parse_buckets(options.buckets, most) if options.buckets else default_buckets(most)
    return [Context(bucket, target, options.limits) for bucket in buckets]


def build(
    result: PipelineResult,
    options: CompileOptions,
    target: Target,
    cache: CompileCache,
    say: Progress,
    report: CompileReport,
    tuning: Sequence[TuningRecord] = (),
    dump_dir: Path | None = None,
) -> list[BuiltBucket]:
    """Libraries of all buckets, with the tiles that the records `tuning` have for their products."""
    backend = backend_for(target)
    regions, contexts = [op.region for op in result.plan.ops], contexts_of(options, target)
    if options.tuning is not None:
        tunable = tuning_of(backend)
        wanted = all_products(tunable, regions, contexts)
        report.tuning = use_records(options.tuning, tuning, tunable, wanted, target)
        contexts = [replace(context, choices=report.tuning.choices) for context in contexts]
    stages = read_stages(options.override, [c.bucket.name for c in contexts]) if options.override else {}
    built = build_buckets(
        backend,
        regions,
        contexts,
        cache,
        options.jobs or len(os.sched_getaffinity(0)),
        lambda done, total: say("kernels", done, total),
        stages,
    )
    if dump_dir is not None:
        dump_stages(dump_dir, backend, regions, contexts, built, stages)
    return built


def write_weights(
    folder: Path, captured: Captured, source: ModelSource, result: PipelineResult, cache: CompileCache, say: Progress
) -> tuple[dict[str, TensorRecord], dict[str, FileRecord]]:
    """Write the packed weights into the artifact folder. Records of the tensors, and of files that the cache knows."""
    types = {name: value.type for name, value in result.graph.weights().items()}
    (folder / WEIGHTS).mkdir()
    weights: list[Any] = []

    def load(name: str) -> Any:
        if not weights:
            weights.append(checkpoint(captured, source))
        return weights[0][name]

    store = packing.WeightCache(cache, weight_digest(captured, source), captured.facts.dtype)
    records: dict[str, TensorRecord] = {}
    files: dict[str, FileRecord] = {}
    for name, tensors in packing.weight_files(types, result.transforms).items():
        before = len(records)
        written = packing.write_weights(
            folder / WEIGHTS / name,
            tensors,
            result.transforms,
            load,
            store,
            lambda done, _, before=before: say("weights", before + done, len(types)),  # type: ignore[misc]
        )
        if written is not None:
            files[f"{WEIGHTS}/{name}"] = written
        records |= packing.read_index(folder / WEIGHTS / name, f"{WEIGHTS}/{name}")
        say("weights", len(records), len(types))
    return records, files


def weight_digest(captured: Captured, source: ModelSource) -> str:
    """Digest of all that weight transforms read: the checkpoint, and the constants the trace took from the config."""
    constants = hashlib.sha256(captured.trace["constants.safetensors"]).hexdigest()
    return hashlib.sha256(f"{source.weights.fingerprint()} {constants}".encode()).hexdigest()


def checkpoint(captured: Captured, source: ModelSource) -> Any:
    """The graph's weights over the checkpoint of `source`. Raises `WeightError` unless every tensor is used."""
    from inferir.frontend.capture.trace import TracedModel

    with scratch_folder("trace") as folder:
        for file, content in captured.trace.items():
            (folder.path / file).write_bytes(content)
        traced = TracedModel.load(folder.path)
    return traced.weights(source.weights)
