"""Step programs: arguments that a kernel takes from an operation other than its own."""

from __future__ import annotations

from pathlib import Path

from artifacts import write_model

from inferir.codegen.backend import Context
from inferir.codegen.backends import backend_for
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import BuiltBucket, distinct, lower_bucket
from inferir.compile.assemble import bucket_records
from inferir.compile.compile_types import CompileOptions, DebugOptions
from inferir.compile.compiler import capture, lower, resolve
from inferir.frontend.source.model_source import load_source
from inferir.ir.contract.bucket import default_buckets
from inferir.ir.contract.manifest import InputArg
from inferir.ir.contract.target import Target


def test_products_of_many_rows_know_what_the_next_attention_reads(tmp_path: Path) -> None:
    """Its caches, tables and items; behind the last attention of a step, those of the first one."""
    model = write_model(tmp_path)
    options = CompileOptions(dtype="bf16", max_num_batched_tokens=64, max_num_seqs=16)
    source = load_source(str(model), options.dtype)
    captured = capture(source, options, CompileCache(None))
    options = resolve(options, captured.facts)
    result = lower(captured, options, Target.named("x86-64-v4+bf16+vnni"), DebugOptions())
    regions = distinct(op.region for op in result.plan.ops)
    few, *_, many = default_buckets(64)
    asking = {}
    for bucket in (few, many):
        target = Target.named("x86-64-v4+bf16+vnni")
        meta = lower_bucket(backend_for(target), regions, Context(bucket, target, options.limits)).meta
        (record,) = bucket_records(result, [BuiltBucket(bucket, meta, b"", ".so", "")])
        kernels = [record.kernels[call.kernel] for call in record.program]
        attentions = [i for i, k in enumerate(kernels) if k.name.endswith("_attention")]
        assert len(attentions) == 2
        asking[bucket] = 0
        for i, (kernel, call) in enumerate(zip(kernels, record.program, strict=True)):
            its = dict(zip((p.name for p in kernel.params), call.args, strict=True))
            if "next_keys" not in its:
                continue
            asking[bucket] += 1
            later = record.program[next((a for a in attentions if a > i), attentions[0])]
            wanted = dict(zip((p.name for p in record.kernels[later.kernel].params), later.args, strict=True))
            assert its["next_keys"] == wanted["kcache"]
            assert its["next_values"] == wanted["vcache"]
            assert its["next_tables"] == InputArg("block_tables") == wanted["block_tables"]
            assert its["next_items"] == InputArg("attn_items") == wanted["attn_items"]
    assert asking == {few: 0, many: 2 * 4}
