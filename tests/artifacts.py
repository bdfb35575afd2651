"""A tiny random Llama with a tokenizer and a chat template, and the artifacts compiled from it, once per test session.

Processes of a parallel session share them: the first one to ask makes them, the others wait.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
VOCAB = 256 + len(SPECIAL)
MAX_MODEL_LEN = 128
BUCKETS = "1,2-8,9-64"
SMALL = (
    "--max-num-batched-tokens",
    "1",
    "--max-num-seqs",
    "1",
    "--max-model-len",
    "32",
    "--buckets",
    "1",
    "--jobs",
    "1",
)
"""Options of the command line for a compile that is as small as can be: a step of one token has the fewest kernels."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """One token per byte, then the special tokens; a chat template."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    # Without a class of its own, some model types would get one that needs a vocabulary of another kind.
    kind = "PreTrainedTokenizerFast"
    config = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_model(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A random Llama of two layers in the format of Hugging Face; `changes` are config fields."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "max_position_embeddings": MAX_MODEL_LEN,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    ids = {"vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 257}
    config = transformers.LlamaConfig(**{**sizes, **heads, **ids, "initializer_range": 0.15, **changes})
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def _once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name`, made by the first process of the session that asks for it."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    root = factory.getbasetemp().parent if parallel else factory.getbasetemp()
    place = root / name
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = root / f"{name}.done"
        if not done.exists():
            make(place)
            done.touch()
    return place


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folder of a random Llama with two layers, in float32. Not to be changed."""
    return _once(tmp_path_factory, "tiny-llama", write_model)


def compile_tiny(model: Path, out: Path, **options: Any) -> None:
    """Compile with small limits: three buckets, 64 tokens and 8 sequences per step."""
    from inferir.compile.compiler import CompileOptions, compile_model

    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "buckets": BUCKETS, "jobs": 1}
    compile_model(str(model), out, CompileOptions(**{**limits, **options}))


@pytest.fixture(scope="session")
def tiny_artifact(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_model` compiled for this machine in float32. Not to be changed."""
    return _once(tmp_path_factory, "tiny-f32", lambda out: compile_tiny(tiny_model, out))


@pytest.fixture(scope="session")
def tiny_artifact_bf16(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_model` compiled for this machine in bfloat16. Not to be changed."""
    return _once(tmp_path_factory, "tiny-bf16", lambda out: compile_tiny(tiny_model, out, dtype="bf16"))


def changed_tokenizer(artifact: Path, out: Path, change: Callable[[Path], None]) -> Path:
    """A copy of an artifact whose tokenizer folder was changed."""
    import msgspec

    from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest

    shutil.copytree(artifact, out)
    change(out / "tokenizer")
    write_manifest(out, msgspec.structs.replace(read_manifest(out), files=file_records(out)))
    return out


def damaged(artifact: Path, place: Path, weight: str, factor: float) -> Path:
    """A copy of an f32 artifact with one weight multiplied, and checksums that fit."""
    import msgspec
    import numpy as np

    from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest

    copy = shutil.copytree(artifact, place)
    manifest = read_manifest(copy)
    record = manifest.weights[weight]
    with open(copy / record.file, "r+b") as file:
        file.seek(record.offset)
        values = np.frombuffer(file.read(record.nbytes), np.float32) * np.float32(factor)
        file.seek(record.offset)
        file.write(values.tobytes())
    write_manifest(copy, msgspec.structs.replace(manifest, files=file_records(copy)))
    return copy
