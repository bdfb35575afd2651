"""The composition root: model in, artifact out.

    load source → trace → passes → plan → one library per bucket → weights → manifest

Every stage asks the compile cache first: the captured graph by what decides it, bucket libraries by their regions,
packed weights by recipe and checkpoint content. An artifact is written beside its place and renamed, so there is never
half of one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import msgspec

from inferir import __version__
from inferir.codegen import packing
from inferir.codegen.cache import CacheOptions, CompileCache
from inferir.codegen.captured import frontend_key, through_cache
from inferir.codegen.tvm.bucket import BuiltBucket, build_buckets, region_digest
from inferir.codegen.tvm.regions import Bounds
from inferir.frontend.facts import ModelFacts
from inferir.frontend.model import ModelSource, load_source
from inferir.ir.artifact import (
    MANIFEST,
    BucketRecord,
    Call,
    IORecord,
    KVArg,
    LimitsRecord,
    Manifest,
    MemoryRecord,
    ModelRecord,
    TensorRecord,
    file_records,
    write_manifest,
)
from inferir.ir.bucket import Bucket, default_buckets, parse_buckets
from inferir.ir.dims import dim_str
from inferir.ir.errors import ArtifactError, InferirError, TargetError
from inferir.ir.graph import Graph
from inferir.ir.kv_cache import FullAttentionSpec, KVCacheGroup, SlidingWindowSpec
from inferir.ir.parser import parse_graph
from inferir.ir.printer import print_graph
from inferir.ir.target import Target
from inferir.ir.types import TensorType
from inferir.passes.base import PassOptions
from inferir.passes.manager import PipelineResult, run_pipeline

WEIGHT_FILE = "weights/model.safetensors"
LONGEST = 8192  # default limit of the context where the model allows more


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What an artifact is compiled for.

    dtype: "auto", "bf16" or "f32"; target: a name of `ir.target.TARGETS` or "host"; max_model_len: tokens per sequence
    (None: the model's, at most 8192); max_num_seqs and max_num_batched_tokens bound a step; block_size: token slots per
    KV block; buckets: ranges of step sizes such as "1,2-8,9-2048" (None: the defaults); opt_level 0 to 3;
    disabled_passes by name; jobs: build processes (None: one per core); admission: compare the captured graph with the
    model before compiling.
    """

    dtype: str = "auto"
    target: str = "host"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 32
    buckets: str | None = None
    opt_level: int = 2
    disabled_passes: frozenset[str] = frozenset()
    jobs: int | None = None
    admission: bool = True
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """What to show while compiling: the graph after pass `print_after` ("all": every one), through `emit`; `dump_dir`
    receives all graphs and kernel sources.
    """

    print_after: str | None = None
    dump_dir: Path | None = None
    emit: Callable[[str], None] = print


class Progress(Protocol):
    """Told about every phase: `done` of `total` steps."""

    def __call__(self, phase: str, done: int, total: int) -> None: ...


@dataclass
class CompileReport:
    """What a compile did: seconds per phase, cache hits and misses, and why a miss was one."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    reasons: list[str] = field(default_factory=list)
    manifest: Manifest | None = None

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Captured:
    """What the frontend delivers: graph over checkpoint weights, facts, the stored trace, the tokenizer's files."""

    graph: Graph
    facts: ModelFacts
    trace: Mapping[str, bytes]
    tokenizer: Mapping[str, bytes]
    tokenizer_size: int


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
    target = Target.named(options.target)
    _check_target(target)
    _check_place(report.path)
    with report.phase("load"):
        source = load_source(spec, options.dtype, options.revision, options.trust_remote_code)
    with report.phase("trace"):
        say("trace", 0, 1)
        captured = capture(source, options, cache, report)
        say("trace", 1, 1)
    options = resolve(options, captured.facts)
    with report.phase("passes"):
        say("passes", 0, 1)
        result = lower(captured, options, debug)
        say("passes", 1, 1)
    with report.phase("kernels"):
        built = build(result, options, target, cache, say, report)
    with _folder(report.path) as folder:
        with report.phase("weights"):
            records = write_weights(folder, captured, source, result, cache, say)
        with report.phase("write"):
            say("write", 0, 1)
            manifest = assemble(folder, captured, result, built, records, options, target, debug)
            report.manifest = manifest
            say("write", 1, 1)
    report.hits, report.misses = cache.hits, cache.misses
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


def capture(source: ModelSource, options: CompileOptions, cache: CompileCache, report: CompileReport) -> Captured:
    """Graph, facts and tokenizer, from the cache or from the model: traced, and compared with it unless told not to."""

    def make_trace(folder: Path) -> None:
        from inferir.frontend.admission import admit_traced
        from inferir.frontend.trace import trace

        traced = trace(source)
        if options.admission:
            admit_traced(traced, source)
        traced.save(folder)

    def make_tokenizer(folder: Path) -> None:
        from inferir.frontend.tokenizer import export_tokenizer

        facts = export_tokenizer(source, folder)
        (folder / "facts.json").write_text(json.dumps({"size": facts.size}), encoding="utf-8")

    digest = source.description_digest()
    trace_files, reason = through_cache(
        cache, "graph", frontend_key(model=digest, admission=options.admission), make_trace
    )
    tokenizer, other = through_cache(
        cache, "tokenizer", frontend_key(model=digest, files=source.tokenizer_digest()), make_tokenizer
    )
    report.reasons += [r for r in (reason, other) if r]
    facts = msgspec.structs.replace(ModelFacts.from_json(trace_files["facts.json"]), name=source.name)
    graph = parse_graph(trace_files["graph.ir"].decode())
    size = json.loads(tokenizer["facts.json"])["size"]
    return Captured(graph, facts, trace_files, {n: f for n, f in tokenizer.items() if n != "facts.json"}, size)


def pass_options(options: CompileOptions, captured: Captured) -> PassOptions:
    assert options.max_model_len is not None
    return PassOptions(
        opt_level=options.opt_level,
        disabled=options.disabled_passes,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        max_logit_rows=options.max_num_seqs,
        block_size=options.block_size,
        vocab_size=min(captured.facts.vocab_size, captured.tokenizer_size),
    )


def lower(captured: Captured, options: CompileOptions, debug: DebugOptions) -> PipelineResult:
    """Run the pass pipeline."""

    def show(name: str, graph: Graph) -> None:
        if debug.print_after in ("all", name):
            debug.emit(f"// after {name}\n{print_graph(graph)}")

    return run_pipeline(
        captured.graph,
        None,
        pass_options(options, captured),
        print_after=show if debug.print_after else None,
        dump_dir=debug.dump_dir,
    )


def buckets_of(options: CompileOptions) -> tuple[Bucket, ...]:
    most = options.max_num_batched_tokens
    return parse_buckets(options.buckets, most) if options.buckets else default_buckets(most)


def build(
    result: PipelineResult,
    options: CompileOptions,
    target: Target,
    cache: CompileCache,
    say: Progress,
    report: CompileReport,
) -> list[BuiltBucket]:
    """Libraries of all buckets."""
    assert options.max_model_len is not None
    bounds = Bounds(options.max_num_seqs, -(-options.max_model_len // options.block_size))
    built = build_buckets(
        [op.region for op in result.plan.ops],
        buckets_of(options),
        target,
        bounds,
        cache,
        options.jobs or len(os.sched_getaffinity(0)),
        lambda done, total: say("kernels", done, total),
    )
    report.reasons += [b.reason for b in built if b.reason]
    return built


def write_weights(
    folder: Path, captured: Captured, source: ModelSource, result: PipelineResult, cache: CompileCache, say: Progress
) -> dict[str, TensorRecord]:
    """Write the packed weights into the artifact folder."""
    types = {name: value.type for name, value in result.graph.weights().items()}
    file = folder / WEIGHT_FILE
    file.parent.mkdir()
    weights: list[Any] = []

    def load(name: str) -> Any:
        if not weights:
            weights.append(checkpoint(captured, source))
        return weights[0].load(name)

    packing.write_weights(
        file,
        types,
        result.recipes,
        load,
        packing.WeightCache(cache, weight_digest(captured, source), captured.facts.dtype),
        lambda done, total: say("weights", done, total),
    )
    return packing.read_index(file, WEIGHT_FILE)


def weight_digest(captured: Captured, source: ModelSource) -> str:
    """Digest of everything recipes read: the checkpoint, and the constants that the trace took from the config."""
    constants = hashlib.sha256(captured.trace["constants.safetensors"]).hexdigest()
    return hashlib.sha256(f"{source.weights.fingerprint()} {constants}".encode()).hexdigest()


def checkpoint(captured: Captured, source: ModelSource) -> Any:
    """The graph's weights over the checkpoint of `source`. Raises `WeightError` unless every tensor is used."""
    from inferir.frontend.trace import TracedModel

    with TemporaryDirectory(prefix="inferir-") as name:
        for file, content in captured.trace.items():
            (Path(name) / file).write_bytes(content)
        traced = TracedModel.load(Path(name))
    return traced.weights(source.weights)


def assemble(
    folder: Path,
    captured: Captured,
    result: PipelineResult,
    built: list[BuiltBucket],
    weights: dict[str, TensorRecord],
    options: CompileOptions,
    target: Target,
    debug: DebugOptions,
) -> Manifest:
    """Write libraries, tokenizer, graphs and the manifest."""
    (folder / "tokenizer").mkdir()
    for name, content in captured.tokenizer.items():
        (folder / "tokenizer" / name).write_bytes(content)
    ir = folder / "ir"
    ir.mkdir()
    (ir / "captured.txt").write_text(print_graph(captured.graph) + "\n", encoding="utf-8")
    (ir / "kernels.txt").write_text(print_graph(result.graph) + "\n", encoding="utf-8")
    (ir / "refusals.txt").write_text("".join(f"{r}\n" for r in result.refusals), encoding="utf-8")
    kernels = folder / "kernels"
    kernels.mkdir()
    for b in built:
        (kernels / f"{b.bucket.name}.so").write_bytes(b.library)
        if debug.dump_dir is not None:
            (debug.dump_dir / f"bucket-{b.bucket.name}.py").write_text(b.source, encoding="utf-8")
    assert options.max_model_len is not None
    kv = kv_groups(result)
    blocks = -(-options.max_model_len // options.block_size)
    scratch = max(b.meta.scratch_bytes for b in built)
    manifest = Manifest(
        model=model_record(captured.facts),
        target=target,
        limits=LimitsRecord(
            max_model_len=options.max_model_len,
            max_tokens=options.max_num_batched_tokens,
            max_seqs=options.max_num_seqs,
            max_rows=options.max_num_seqs,
            max_blocks=blocks,
            block_size=options.block_size,
        ),
        memory=MemoryRecord(
            weight_bytes=(folder / WEIGHT_FILE).stat().st_size,
            arena_bytes=result.plan.arena_bytes,
            scratch_bytes=scratch,
            kv_block_bytes=sum(g.spec.page_bytes * len(g.layers) for g in kv),
        ),
        inputs=tuple(
            io_record(str(v.node.attrs["name"]), v.type)
            for v in result.graph.inputs
            if "cache." not in str(v.node.attrs["name"])
        ),
        outputs=tuple(io_record(o.name, o.type) for o in result.plan.outputs),
        kv=kv,
        buckets=bucket_records(result, built),
        weights=weights,
        files=file_records(folder),
        options=option_record(options),
        versions=versions(),
    )
    return write_manifest(folder, manifest)


def io_record(name: str, type_: TensorType) -> IORecord:
    shape = tuple(d if isinstance(d, int) else dim_str(d) for d in type_.shape)
    return IORecord(name=name, dtype=type_.dtype, shape=shape)


def model_record(facts: ModelFacts) -> ModelRecord:
    return ModelRecord(
        name=facts.name,
        architecture=facts.architecture,
        dtype=facts.dtype,
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        num_layers=facts.num_layers,
        eos_token_ids=facts.eos_token_ids,
        bos_token_id=facts.bos_token_id,
        parameters=facts.parameters,
        facts=msgspec.to_builtins(facts),
    )


def bucket_records(result: PipelineResult, built: list[BuiltBucket]) -> tuple[BucketRecord, ...]:
    """Step programs: the planned calls with each kernel's arguments in the order of its parameters."""
    provenance: dict[str, list[str]] = {}
    for op in result.plan.ops:
        paths = provenance.setdefault(region_digest(op.region), [])
        if op.region.loc.module and op.region.loc.module not in paths:
            paths.append(op.region.loc.module)
    out = []
    for b in built:
        program = []
        for op in result.plan.ops:
            number = b.kernel_of(op.region)
            order = b.meta.kernels[number].order
            program.append(Call(kernel=number, args=tuple(_argument(op, i) for i in order)))
        out.append(
            BucketRecord(
                name=b.bucket.name,
                lo=b.bucket.lo,
                hi=b.bucket.hi,
                decode=b.bucket.decode,
                library=f"kernels/{b.bucket.name}.so",
                kernels=b.records(provenance),
                program=tuple(program),
                attn_tile=b.meta.attn_tile,
                scratch_bytes=b.meta.scratch_bytes,
            )
        )
    return tuple(out)


def _argument(op: Any, index: int) -> Any:
    """Argument of a planned op by index into operands + results; results written in place are not among its `args`."""
    operands = len(op.region.operands)
    if index < operands:
        return op.args[index]
    body: Graph = op.region.attrs["body"]
    before = sum(1 for v in body.outputs[: index - operands] if v.op != "kv.write")
    return op.args[operands + before]


def kv_groups(result: PipelineResult) -> tuple[KVCacheGroup, ...]:
    """Layers by the cache they need, read off the attention ops of the kernel graph."""
    specs: dict[FullAttentionSpec | SlidingWindowSpec, list[int]] = {}
    for op in result.plan.ops:
        if op.region.attrs["anchor"] != "attention":
            continue
        body: Graph = op.region.attrs["body"]
        node = next(n for n in body.nodes if n.op == "attn.paged")
        q, kc, vc = (v.type for v in node.operands[:3])
        sizes = {
            "block_size": node.attrs["block_size"],
            "kv_heads": node.attrs["kv_heads"],
            "head_dim": q.shape[2],
            "value_dim": vc.shape[3],
            "dtype": kc.dtype,
        }
        window = node.attrs["window"]
        spec = SlidingWindowSpec(window=window, **sizes) if window else FullAttentionSpec(**sizes)
        layer = next(a.layer for a in op.args if isinstance(a, KVArg))
        specs.setdefault(spec, []).append(layer)
    return tuple(KVCacheGroup(spec=spec, layers=tuple(layers)) for spec, layers in specs.items())


def option_record(options: CompileOptions) -> dict[str, Any]:
    return {
        "dtype": options.dtype,
        "opt_level": options.opt_level,
        "disabled_passes": sorted(options.disabled_passes),
        "buckets": options.buckets,
    }


def versions() -> dict[str, str]:
    names = ("apache-tvm", "torch", "transformers")
    return {"inferir": __version__, **{n: importlib.metadata.version(n) for n in names}}


def _check_target(target: Target) -> None:
    """Whole models are compiled for CPUs only; without this, LLVM would make code for some CPU under a GPU's name."""
    if target.kind != "cpu":
        raise TargetError(
            f"target {target.name} is a {target.kind} device; models can be compiled for CPUs only, so far"
        )


def _check_place(path: Path) -> None:
    if path.exists() and not (path / MANIFEST).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise ArtifactError(f"{path} exists and is not an artifact; choose another place")


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place if the block succeeds, and vanishes if not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        if path.exists():
            os.rename(path, old)
        os.rename(temporary, path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
