"""Where an artifact goes wrong: the pass, the stored weight, the kernel or the step input that is the first to diverge.

All stages are looked at, each against a reference of its own: so a fault in one is neither hidden nor repeated by the
next.

    capture, passes   graphs in the interpreter      against eager's logits
    recorded graph    ART/ir/kernels.txt, likewise   against eager's logits
    weights           stored tensors                 against their transforms of the checkpoint
    kernels           region by region               against the interpreter on the same operands
    runtime           step inputs, cache contents    against a simulation of the cache
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.compile.compile_types import Captured, CompileOptions, Progress, one_step
from inferir.compile.compiler import capture, checkpoint
from inferir.frontend.source.model_source import ModelSource, load_source
from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import ArtifactError, IRError, UntraceableError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.parser import parse_graph
from inferir.ir.system.quantities import count
from inferir.ir.system.text_file import read_text
from inferir.passes.context import PassOptions
from inferir.runtime.executor.executors import check_target
from inferir.runtime.loader import LoadedArtifact, load_artifact
from inferir.runtime.machine import thread_count
from inferir.runtime.text.tokenizer import Tokenizer
from inferir.verify.bisect_kernels import KernelSearch, RegionRun
from inferir.verify.bisect_passes import PassSearch, Pipeline, measure
from inferir.verify.bisect_runtime import runtime_finding
from inferir.verify.bisect_weights import stored, wrong_weights
from inferir.verify.cases import Part, schedules, token_pool
from inferir.verify.eager_reference import EagerReference
from inferir.verify.finding_texts import capture_finding, graph_finding, kernel_finding, pass_finding, weight_finding
from inferir.verify.findings import Bisection, Finding, Looked
from inferir.verify.layers import Layers, compare_layers, first_in_capture
from inferir.verify.logit_bound import Reach
from inferir.verify.reproducer import ReproducerFolder
from inferir.verify.simulated_steps import chunked
from inferir.verify.staged_graph import StagedGraph
from inferir.verify.torch_threads import torch_threads
from inferir.verify.verify_artifact import check_model, find_model

RECORDED = "ir/kernels.txt"
LONGEST = 640
"""Tokens of a sequence at most: beyond the windows that models have, as far as the interpreter is patient."""


def bisect_artifact(
    artifact: str | os.PathLike[str],
    model: str | None = None,
    *,
    place: Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Bisection:
    """Look for what is at fault in `artifact`, compiled from `model` (None: look for it). Reproducers go to `place`.

    Raises an `InferirError`.
    """
    reproducers = ReproducerFolder(place, Path(artifact))
    with _search(artifact, model, reproducers, threads, progress, revision, trust_remote_code) as search:
        return search.run()


def artifact_layers(
    artifact: str | os.PathLike[str],
    model: str | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Layers:
    """Compare `artifact` with eager module by module. Raises an `InferirError`."""
    reproducers = ReproducerFolder(None, Path(artifact))
    with _search(artifact, model, reproducers, threads, progress, revision, trust_remote_code) as search:
        return search.layers()


@contextmanager
def _search(
    artifact: str | os.PathLike[str],
    model: str | None,
    reproducers: ReproducerFolder,
    threads: int | None,
    progress: Progress | None,
    revision: str | None,
    trust_remote_code: bool,
) -> Iterator[Search]:
    loaded = load_artifact(artifact, check_target)
    manifest = loaded.manifest
    spec = model if model is not None else find_model(Path(artifact), manifest)
    source = load_source(spec, manifest.model.dtype, revision, trust_remote_code)
    check_model(manifest, source)
    with torch_threads(manifest.model.parameters):
        yield Search(
            loaded, source, reproducers, thread_count(threads), progress or (lambda phase, done, total: None), revision
        )


@dataclass
class Search:
    """A bisection of one artifact."""

    artifact: LoadedArtifact
    source: ModelSource
    reproducers: ReproducerFolder
    threads: int
    progress: Progress
    revision: str | None = None
    findings: list[Finding] = field(default_factory=list)
    looked: list[Looked] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> Bisection:
        manifest = self.artifact.manifest
        sequences = _sequences(manifest, self.artifact.tokenizer_dir)
        eager = EagerReference(self.source, sequences)
        eager.logits(DType.F32, self._say("eager f32"))
        pipeline = self._pipeline(self.source)
        self._passes(pipeline, eager, manifest.model.dtype)
        if manifest.model.dtype is not DType.F32 and not self.findings:
            wide = load_source(self.source.spec, DType.F32, self.revision, self.source.trust_remote_code)
            self._passes(self._pipeline(wide), eager, DType.F32)
        graph = _recorded(self.artifact)
        self._recorded(graph, pipeline, eager)
        self._weights(graph, pipeline)
        self._kernels(graph, pipeline)
        self._runtime()
        return Bisection(tuple(self.findings), tuple(self.looked), tuple(self.notes))

    def layers(self) -> Layers:
        """Module by module, without a search."""
        manifest = self.artifact.manifest
        with one_step("layers", self.progress):
            eager = EagerReference(self.source, _sequences(manifest, self.artifact.tokenizer_dir))
            pipeline, graph = self._pipeline(self.source), _recorded(self.artifact)
            return compare_layers(self.artifact, graph, pipeline, eager, manifest.model.dtype, self.threads)

    def _say(self, phase: str) -> Callable[[int, int], None]:
        return lambda done, total: self.progress(phase, done, total)

    def _pipeline(self, source: ModelSource) -> Pipeline:
        manifest = self.artifact.manifest
        captured = _capture(source)
        options = PassOptions(
            opt_level=int(manifest.options.get("opt_level", 2)),
            disabled=frozenset(manifest.options.get("disabled_passes", ())),
            limits=manifest.limits,
            vocab_size=min(captured.facts.vocab_size, captured.tokenizer_size),
            features=frozenset(manifest.target.features),
        )
        return Pipeline.run(captured.graph, options, checkpoint(captured, source))

    def _passes(self, pipeline: Pipeline, eager: EagerReference, dtype: DType) -> None:
        steps = _steps(eager)
        search = PassSearch(pipeline, eager.bound(dtype), eager.sequences, steps, self._say(f"passes {dtype.value}"))
        number = search.first()
        stages = pipeline.stages
        last = search.reaches[max(search.reaches)]
        if number is None:
            result = str(last)
        elif number == 0:
            result = f"the captured graph is out of bound: {search.reaches[0]}"
            self.findings.append(self._capture(pipeline, eager, dtype, search.reaches[0]))
        else:
            result = f"{stages[number].title} is the first out of bound: {search.reaches[number]}"
            self.findings.append(
                pass_finding(pipeline, number, dtype, search.reaches, max(eager.sequences, key=len), self.reproducers)
            )
        self.looked.append(Looked(f"passes, {dtype.value}", f"captured graph and {len(stages) - 1:,} passes", result))

    def _capture(self, pipeline: Pipeline, eager: EagerReference, dtype: DType, reach: Reach) -> Finding:
        number = max(range(len(eager.sequences)), key=lambda i: len(eager.sequences[i]))
        return capture_finding(pipeline, first_in_capture(pipeline, eager, dtype, number), reach, self.reproducers)

    def _recorded(self, graph: Graph, pipeline: Pipeline, eager: EagerReference) -> None:
        if graph.structural_hash() == pipeline.result.graph.structural_hash():
            self.looked.append(Looked("recorded graph", RECORDED, "the same as the pipeline makes today"))
            return
        self.notes.append(
            f"the pipeline makes another kernel graph today than {RECORDED} has; kernels are held against the recorded "
            "one"
        )
        bound = eager.bound(self.artifact.manifest.model.dtype)
        weights = _Stored(graph, pipeline, self.artifact)
        reach = measure(
            lambda: StagedGraph(graph, weights, self.artifact.manifest.kv, self.artifact.manifest.limits).logits(
                eager.sequences, _steps(eager)
            ),
            bound,
        )
        self.looked.append(Looked("recorded graph", RECORDED, str(reach)))
        if not reach.passed:
            self.findings.append(graph_finding(graph, pipeline, reach))

    def _weights(self, graph: Graph, pipeline: Pipeline) -> None:
        made = pipeline.weights
        wrong = list(wrong_weights(self.artifact, made, self._say("weights")))
        for each in wrong:
            self.findings.append(weight_finding(each, graph, pipeline, self.reproducers))
        unknown = [n for n in self.artifact.manifest.weights if n not in set(made)]
        if unknown:
            self.notes.append(f"{len(unknown)} stored weights are unknown to today's pipeline, first {unknown[0]}")
        result = f"{len(wrong)} differ, first {wrong[0].name}" if wrong else "as their transforms make them"
        self.looked.append(Looked("weights", count(len(self.artifact.manifest.weights), "stored tensor"), result))

    def _kernels(self, graph: Graph, pipeline: Pipeline) -> None:
        manifest = self.artifact.manifest
        longest = manifest.limits.max_model_len - 1
        plan = schedules(manifest.buckets, manifest.limits, longest, quick=True)
        most = max(len(s.lengths) for s in plan)
        pool = _pool(manifest, self.artifact.tokenizer_dir, most, max(n for s in plan for n in s.lengths))
        weights = _Stored(graph, pipeline, self.artifact)
        found = _Regions()
        KernelSearch(self.artifact, graph, weights, self.threads).run(plan, pool, found.add, self._say("kernels"))
        for runs in found.failed.values():
            self.findings.append(kernel_finding(runs, self.artifact, self.threads, self.reproducers))
        worst = found.worst
        result = "no region ran"
        if worst is not None:
            result = f"the worst is {worst.call.name} in {worst.bucket}, at {worst.deviation.excess:.2g} of its bound"
        looked = f"{count(found.count, 'region')} in {count(len(manifest.buckets), 'bucket')}"
        self.looked.append(Looked("kernels", looked, result))

    def _runtime(self) -> None:
        manifest = self.artifact.manifest
        pool = _pool(manifest, self.artifact.tokenizer_dir, 4, min(manifest.limits.max_model_len, LONGEST))
        finding, steps = runtime_finding(self.artifact, pool, self.threads, self.reproducers, self._say("runtime"))
        result = "inputs and caches are as a simulation expects"
        if finding is not None:
            self.findings.append(finding)
            result = f"{finding.name} in {finding.where}"
        self.looked.append(Looked("runtime", f"the inputs of {count(steps, 'step')}", result))


@dataclass
class _Regions:
    """Regions that ran; of each kernel that failed, its runs."""

    count: int = 0
    worst: RegionRun | None = None
    failed: dict[str, list[RegionRun]] = field(default_factory=dict)

    def add(self, run: RegionRun) -> None:
        self.count += 1
        kept = replace(run, operands=())
        if self.worst is None or run.deviation.excess > self.worst.deviation.excess:
            self.worst = kept
        if not run.passed:
            runs = self.failed.setdefault(run.digest, [])
            runs.append(kept if runs else run)


def _capture(source: ModelSource) -> Captured:
    """The captured graph as a compile has it. One that the trace check refuses is taken all the same: it is what the
    search is for.
    """
    cache = CompileCache.from_env(CacheOptions())
    try:
        return capture(source, CompileOptions(), cache)
    except UntraceableError:
        return capture(source, CompileOptions(trace_check=False), cache)


def _recorded(artifact: LoadedArtifact) -> Graph:
    try:
        return parse_graph(read_text(artifact.path / RECORDED, "the kernel graph"))
    except IRError as error:
        raise ArtifactError(f"{artifact.path / RECORDED}: {error}; compile the model again") from None


class _Stored(Mapping[str, torch.Tensor]):
    """Weights of the artifact's own graph: made from the checkpoint, or where today's pipeline makes no such tensor, as
    they are stored.
    """

    def __init__(self, graph: Graph, pipeline: Pipeline, artifact: LoadedArtifact) -> None:
        self._types = {name: value.type for name, value in graph.weights().items()}
        today = {name: value.type for name, value in pipeline.result.graph.weights().items()}
        self._made = {name for name, type_ in self._types.items() if today.get(name) == type_}
        self._weights = pipeline.weights
        self._artifact = artifact

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name] if name in self._made else stored(self._artifact, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def _pool(manifest: Manifest, tokenizer: Path, count: int, length: int) -> list[list[int]]:
    """Sequences of ordinary tokens, the same as a verification's."""
    special = set(manifest.model.eos_token_ids)
    if (tokenizer / "tokenizer.json").exists():
        special |= set(Tokenizer.load(tokenizer).special_ids)
    every = list(range(manifest.model.vocab_size))
    vocabulary = [i for i in every if i not in special] or every
    return token_pool(count, length, vocabulary, manifest.model.bos_token_id)


def _sequences(manifest: Manifest, tokenizer: Path) -> list[list[int]]:
    """Two sequences: one that is longer than a block and than the windows of the model, and a short one."""
    limits = manifest.limits
    reaches = [group.spec.reads.reach or 0 for group in manifest.kv]
    wanted = max(24, limits.block_size + 9, *(reach + 8 for reach in reaches if reach + 8 <= LONGEST), 0)
    long = max(1, min(limits.max_model_len - 1, wanted))
    pool = _pool(manifest, tokenizer, 2, long)
    return [pool[0], pool[1][: max(1, min(long, 11))]]


def _steps(eager: EagerReference) -> list[list[Part]]:
    """A mixed step, one with the rest of the prompts but three tokens, and steps of one token."""
    lengths = [len(s) for s in eager.sequences]
    return chunked(lengths, [7, max(1, max(lengths) - 10)])
