"""An artifact on this machine: its files, format and interface, target, tokenizer, and the memory that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from inferir import __version__
from inferir.doctor.finding import Finding, failure, skipped
from inferir.inspect.memory_table import kv_json
from inferir.ir.contract.artifact import read_manifest, verify_files
from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import InferirError
from inferir.ir.system.quantities import count, size
from inferir.runtime import machine
from inferir.runtime.executor.cpu.cpu_executor import check_interface
from inferir.runtime.executor.executors import check_target

LAYER = "artifact"
MANIFEST, FILES, TARGET, MEMORY, INTERFACE = "manifest", "files", "target", "memory", "interface"
_AGAIN = "compile the model again"


def check_artifact(path: Path) -> Iterator[Finding]:
    """Findings about the artifact folder `path`. Nothing of it is changed or run."""
    try:
        manifest = read_manifest(path)
    except InferirError as error:
        yield failure(LAYER, MANIFEST, error, "give a folder that `inferir compile` made")
        for name in (FILES, INTERFACE, TARGET, "tokenizer", MEMORY):
            yield skipped(LAYER, name, "the manifest cannot be used")
        return
    made = manifest.versions.get("inferir", "?")
    text = f"{manifest.model.name}, format {manifest.format}, compiled by inferir {made} (this is {__version__})"
    yield Finding(LAYER, MANIFEST, "ok", text)
    yield from _files(path, manifest)
    yield _interface(path, manifest)
    yield _target(manifest)
    yield _tokenizer(path, manifest)
    yield _memory(manifest)


def _files(path: Path, manifest: Manifest) -> Iterator[Finding]:
    """One line for each damaged file."""
    intact = True
    for name in manifest.files:
        try:
            verify_files(path, manifest, names=[name])
        except InferirError as error:
            intact = False
            yield failure(LAYER, FILES, error, "copy or compile it again")
    if intact:
        total = sum(record.bytes for record in manifest.files.values())
        yield Finding(LAYER, FILES, "ok", f"{count(len(manifest.files), 'file')}, {size(total)}, checksums agree")


def _interface(path: Path, manifest: Manifest) -> Finding:
    if manifest.target.kind != "cpu":
        return skipped(LAYER, INTERFACE, f"kernels for {manifest.target.kind} have another one")
    try:
        check_interface(path, manifest)
    except InferirError as error:
        return failure(LAYER, INTERFACE, error, _AGAIN)
    return Finding(LAYER, INTERFACE, "ok", f"kernels speak interface {manifest.abi}, as this runtime does")


def _target(manifest: Manifest) -> Finding:
    try:
        check_target(manifest.target)
    except InferirError as error:
        return failure(LAYER, TARGET, error, f"{_AGAIN} with --target host on this machine")
    return Finding(LAYER, TARGET, "ok", f"{manifest.target.name} runs on this processor")


def _tokenizer(path: Path, manifest: Manifest) -> Finding:
    from inferir.runtime.text.chat_templates import ChatTemplates
    from inferir.runtime.text.tokenizer import Tokenizer

    folder, name = path / "tokenizer", "tokenizer"
    if not (folder / "tokenizer.json").exists() and "tokenizer/tokenizer.json" not in manifest.files:
        advice = "compile from a model folder that has a tokenizer, unless prompts are token ids only"
        return Finding(LAYER, name, "warning", "the artifact has no tokenizer.json: it serves token ids only", advice)
    try:
        Tokenizer.load(folder)
        templates = ChatTemplates.load(folder)
    except InferirError as error:
        return failure(LAYER, name, error, "copy the artifact again, or compile it again")
    for problem in templates.problems.values() if templates else ():
        advice = "give a working one with inferir serve --chat-template FILE"
        return Finding(LAYER, name, "warning", f"a chat template cannot be used: {problem}", advice)
    chat = "with a chat template" if templates else "without a chat template: completions only"
    return Finding(LAYER, name, "ok", f"tokenizer.json can be read, {chat}")


def _memory(manifest: Manifest) -> Finding:
    """Weights count fully, though they are mapped: a machine that cannot hold them reads them again in every step."""
    threads = machine.thread_count()
    memory, bounds = manifest.memory, manifest.limits.bounds
    records = (*manifest.inputs, *manifest.outputs, *manifest.residents)
    shapes = [[bounds.get(d, 1) if isinstance(d, str) else d for d in r.shape] for r in records]
    step = sum(r.dtype.itemsize * math.prod(shape) for r, shape in zip(records, shapes, strict=True))
    fixed = memory.weight_bytes + memory.arena_bytes + threads * memory.scratch_bytes + step
    least = fixed + (1 + len(manifest.kv)) * memory.kv_block_bytes
    sequence = fixed + int(kv_json(manifest.kv, manifest.limits)["kv_bytes_per_sequence"])
    free = machine.available_bytes()
    length = f"one sequence of {manifest.limits.max_model_len:,} tokens"
    if free < least:
        text = f"needs at least {size(least)}, weights included, and {size(free)} are available"
        advice = "end other processes, raise the limit (control group, ulimit), or serve it on a larger machine"
        return Finding(LAYER, MEMORY, "failed", text, advice)
    if free < sequence:
        text = f"needs {size(sequence)} for {length}, and {size(free)} are available"
        advice = "serve it with a lower --max-model-len, or give it more memory"
        return Finding(LAYER, MEMORY, "warning", text, advice)
    return Finding(LAYER, MEMORY, "ok", f"needs {size(sequence)} with {length}; {size(free)} are available")
