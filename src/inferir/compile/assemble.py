"""Putting an artifact together: libraries, tokenizer, graphs for people, and the manifest that describes it all."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import msgspec

from inferir import __version__
from inferir.codegen.library import BuiltBucket, region_digest
from inferir.compile.compile_types import WEIGHTS, Captured, CompileOptions
from inferir.frontend.tokenizer.template_files import DEFAULT, template_file
from inferir.ir.contract.artifact import file_records, write_manifest
from inferir.ir.contract.kernel_args import KernelArg, Of, Operand, Resident, Result, Workspace
from inferir.ir.contract.kv_groups import plan_slabs
from inferir.ir.contract.manifest import (
    ArenaArg,
    Arg,
    BucketRecord,
    Call,
    FileRecord,
    IORecord,
    Manifest,
    MemoryRecord,
    ModelRecord,
    PluginRecord,
    ResidentArg,
    TensorRecord,
)
from inferir.ir.contract.target import Target
from inferir.ir.graph.dims import dim_str
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.types import TensorType
from inferir.passes.manager import PipelineResult
from inferir.passes.step_plan import StepPlan
from inferir.runtime.text.tool_style import detect_style


def assemble(
    folder: Path,
    captured: Captured,
    result: PipelineResult,
    built: list[BuiltBucket],
    weights: dict[str, TensorRecord],
    hashed: dict[str, FileRecord],
    options: CompileOptions,
    target: Target,
    plugins: tuple[PluginRecord, ...] = (),
) -> Manifest:
    """Write libraries, tokenizer, graphs and the manifest. hashed: records of files that are known already."""
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
        (kernels / f"{b.bucket.name}{b.suffix}").write_bytes(b.library)
    given = [io_record(name, v.type) for name, v in result.step_inputs.items()]
    manifest = Manifest(
        model=model_record(captured),
        target=target,
        limits=options.limits,
        memory=MemoryRecord(
            weight_bytes=sum(file.stat().st_size for file in (folder / WEIGHTS).iterdir()),
            arena_bytes=result.plan.arena_bytes + max(b.meta.workspace_bytes for b in built),
            scratch_bytes=max(b.meta.scratch_bytes for b in built),
            kv_block_bytes=plan_slabs(result.kv).block_bytes,
        ),
        inputs=tuple(r for r in given if r.name not in result.residents),
        residents=tuple(r for r in given if r.name in result.residents),
        outputs=tuple(io_record(o.name, o.type) for o in result.plan.outputs),
        kv=result.kv,
        buckets=bucket_records(result, built),
        weights=weights,
        files=file_records(folder, hashed),
        options=option_record(options),
        versions=versions(),
        plugins=plugins,
    )
    return write_manifest(folder, manifest)


def io_record(name: str, type_: TensorType) -> IORecord:
    shape = tuple(d if isinstance(d, int) else dim_str(d) for d in type_.shape)
    return IORecord(name=name, dtype=type_.dtype, shape=shape)


def model_record(captured: Captured) -> ModelRecord:
    facts, tokenizer = captured.facts, captured.tokenizer
    with_tools = tokenizer.get(template_file("tool_use"), tokenizer.get(template_file(DEFAULT)))
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
        tool_style=None if with_tools is None else detect_style(with_tools.decode("utf-8", "replace")),
        decisions=captured.decisions,
        facts=msgspec.to_builtins(facts),
    )


def bucket_records(result: PipelineResult, built: list[BuiltBucket]) -> tuple[BucketRecord, ...]:
    """Step programs: the planned calls with each kernel's arguments in the order of its parameters.

    The workspace that regions use, one after another, lies behind the planned arena.
    """
    provenance: dict[str, list[str]] = {}
    for op in result.plan.ops:
        paths = provenance.setdefault(region_digest(op.region), [])
        if op.region.loc.module and op.region.loc.module not in paths:
            paths.append(op.region.loc.module)
    out = []
    for b in built:
        program = []
        for place, op in enumerate(result.plan.ops):
            for number in b.kernels_of(op.region):
                args = tuple(_argument(arg, place, result.plan, b) for arg in b.meta.kernels[number].args)
                program.append(Call(kernel=number, args=args))
        out.append(
            BucketRecord(
                name=b.bucket.name,
                lo=b.bucket.lo,
                hi=b.bucket.hi,
                decode=b.bucket.decode,
                library=f"kernels/{b.bucket.name}{b.suffix}",
                kernels=b.records(provenance),
                program=tuple(program),
                attn_tile=b.meta.attn_tile,
                scratch_bytes=b.meta.scratch_bytes,
                replaced=dict(b.replaced),
            )
        )
    return tuple(out)


def _argument(arg: KernelArg, place: int, plan: StepPlan, built: BuiltBucket) -> Arg:
    """What `arg` stands for in operation `place` of the plan."""
    op = plan.ops[place]
    match arg:
        case Operand(index):
            return op.args[index]
        case Result(index):
            body: Graph = op.region.attrs["body"]
            in_place = sum(1 for v in body.outputs[:index] if v.op == "kv.write")
            return op.args[len(op.region.operands) + index - in_place]
        case Workspace(offset):
            return ArenaArg(plan.arena_bytes + offset)
        case Resident(name):
            return ResidentArg(name)
        case Of(anchor, param):
            later = (*range(place, len(plan.ops)), *range(place))
            place = next(i for i in later if plan.ops[i].region.attrs["anchor"] == anchor)
            kernel = built.meta.kernels[built.kernels_of(plan.ops[place].region)[0]]
            names = [p.name for p in kernel.params]
            return _argument(kernel.args[names.index(param)], place, plan, built)


def option_record(options: CompileOptions) -> dict[str, Any]:
    return {
        "dtype": options.dtype,
        "opt_level": options.opt_level,
        "disabled_passes": sorted(options.disabled_passes),
        **({"enabled_passes": sorted(options.enabled_passes)} if options.enabled_passes else {}),
        "buckets": options.buckets,
    }


def versions() -> dict[str, str]:
    names = ("apache-tvm", "torch", "transformers")
    return {"inferir": __version__, **{n: importlib.metadata.version(n) for n in names}}
