"""Consistency of a manifest: every reference resolves, every range and offset is sound."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping
from pathlib import PurePosixPath

from inferir.ir.contract.kv_groups import plan_slabs
from inferir.ir.contract.manifest import (
    ALIGNMENT,
    ArenaArg,
    Arg,
    BucketRecord,
    InputArg,
    KVArg,
    Manifest,
    OutputArg,
    ResidentArg,
    WeightArg,
)
from inferir.ir.errors import ArtifactError


def check_manifest(manifest: Manifest) -> None:
    """Raise `ArtifactError` naming the first entry that contradicts another."""
    for problem in _problems(manifest):
        raise ArtifactError(f"manifest.json is inconsistent: {problem}")


def _problems(m: Manifest) -> Iterator[str]:
    for path in m.files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts or str(pure) != path:
            yield f"file name {path!r} is not a plain relative path"
    yield from _weight_problems(m)
    limits = m.limits
    for name in limits.__struct_fields__:
        if getattr(limits, name) < 1:
            yield f"limit {name} is {getattr(limits, name)}"
    if limits.max_rows < limits.max_seqs:
        yield f"max_rows {limits.max_rows} is less than max_seqs {limits.max_seqs}"
    yield from _kv_problems(m)
    for bucket in m.buckets:
        yield from _bucket_problems(m, bucket)
    yield from _coverage_problems(m)


def _weight_problems(m: Manifest) -> Iterator[str]:
    for name, tensor in m.weights.items():
        count = 1
        for dim in tensor.shape:
            count *= dim
        file = m.files.get(tensor.file)
        if file is None:
            yield f"weight {name!r} lies in {tensor.file!r}, which is not listed in files"
        elif tensor.offset < 0 or tensor.offset + tensor.nbytes > file.bytes:
            yield f"weight {name!r} reaches beyond the end of {tensor.file!r}"
        elif tensor.offset % ALIGNMENT:
            yield f"weight {name!r} is not aligned to {ALIGNMENT} bytes"
        elif count * tensor.dtype.itemsize != tensor.nbytes:
            yield f"weight {name!r} of shape {tensor.shape} and {tensor.nbytes} bytes is not {tensor.dtype.value}"


def _kv_problems(m: Manifest) -> Iterator[str]:
    inputs = {i.name for i in m.inputs}
    own: set[str] = set()
    for number, group in enumerate(m.kv):
        where = f"KV group {number}"
        if group.spec.block_size != m.limits.block_size:
            yield f"{where} has block size {group.spec.block_size}, the limits say {m.limits.block_size}"
        if len(set(group.layers)) != len(group.layers):
            yield f"{where} has a layer twice"
        for name in (group.block_tables, group.slots, group.items):
            if name is not None and name not in inputs:
                yield f"{where} reads input {name!r}, which the step does not have"
        for name in (group.block_tables, group.slots):
            if name in own:
                yield f"{where} shares input {name!r} with another"
            own.add(name)
    if m.memory.kv_block_bytes != plan_slabs(m.kv).block_bytes:
        yield f"a KV block takes {plan_slabs(m.kv).block_bytes} bytes, the memory table says {m.memory.kv_block_bytes}"


def _bucket_problems(m: Manifest, bucket: BucketRecord) -> Iterator[str]:
    where = f"bucket {bucket.name!r}"
    if not 1 <= bucket.lo < bucket.hi:
        yield f"{where} has the empty range {bucket.lo}..{bucket.hi}"
    if bucket.attn_tile < 1:
        yield f"{where} has attn_tile {bucket.attn_tile}"
    if bucket.library not in m.files:
        yield f"{where} uses library {bucket.library!r}, which is not listed in files"
    kernels = {k.id: k for k in bucket.kernels}
    if [k.id for k in bucket.kernels] != list(range(len(bucket.kernels))):
        yield f"{where} does not number its kernels 0, 1, ..., as its library does"
    known: dict[str, Container[str]] = {"weight": m.weights.keys()}
    for kind, records in (("input", m.inputs), ("output", m.outputs), ("resident", m.residents)):
        known[kind] = {r.name for r in records}
    caches = {KVArg(i, layer, t.role) for i, group in enumerate(m.kv) for _, layer, t in group.caches()}
    for index, call in enumerate(bucket.program):
        kernel = kernels.get(call.kernel)
        if kernel is None:
            yield f"{where} op {index} calls kernel {call.kernel}, which it does not have"
            continue
        if len(call.args) != len(kernel.params):
            count = f"{len(call.args)} arguments to {kernel.name}, which takes {len(kernel.params)}"
            yield f"{where} op {index} passes {count}"
        for arg in call.args:
            problem = _arg_problem(arg, m.memory.arena_bytes, known, caches)
            if problem:
                yield f"{where} op {index} ({kernel.name}): {problem}"


def _arg_problem(arg: Arg, arena: int, known: Mapping[str, Container[str]], caches: Container[KVArg]) -> str | None:
    match arg:
        case ArenaArg(offset):
            if offset % ALIGNMENT or not 0 <= offset <= arena:
                return f"arena offset {offset} is outside the arena or unaligned"
        case WeightArg(name) | InputArg(name) | OutputArg(name) | ResidentArg(name):
            kind = str(arg.__struct_config__.tag)
            if name not in known[kind]:
                return f"no {kind} {name!r}"
        case KVArg(group, layer, role):
            if arg not in caches:
                return f"no {role!r} cache of layer {layer} in KV group {group}"
    return None


def _coverage_problems(m: Manifest) -> Iterator[str]:
    for decode in (False, True):
        ranges = sorted((b.lo, b.hi, b.name) for b in m.buckets if b.decode is decode)
        for (_, hi, first), (lo, _, second) in itertools.pairwise(ranges):
            if lo < hi:
                yield f"buckets {first!r} and {second!r} overlap"
    tokens = 1
    for lo, hi in sorted((b.lo, b.hi) for b in m.buckets if not b.decode):
        if lo > tokens:
            break
        tokens = max(tokens, hi)
    if tokens <= m.limits.max_tokens:
        yield f"no bucket covers a step of {tokens} tokens (the limit is {m.limits.max_tokens})"
