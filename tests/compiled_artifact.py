"""A real artifact whose kernels are written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_limits import limits

from inferir.ir.contract.artifact import file_records, write_manifest
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.contract.manifest import (
    ArenaArg,
    Arg,
    BucketRecord,
    Call,
    InputArg,
    IORecord,
    KernelParam,
    KernelRecord,
    KVArg,
    Manifest,
    MemoryRecord,
    ModelRecord,
    OutputArg,
    TensorRecord,
    WeightArg,
)
from inferir.ir.contract.step_inputs import STEP_INPUTS, WORDS, mask_words
from inferir.ir.contract.target import Target
from inferir.ir.graph.dtypes import DType

BLOCK = 4
COMPILED_VOCAB = 50


@pytest.fixture(scope="session")
def compiled_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real artifact with hand-written kernels: the token after position p is (id + p * step) % vocabulary.

    "step" is a weight (3); the value passes through the KV cache, so that slots and block tables count.
    """
    from inferir.codegen.tvm.build.build_module import build_module
    from inferir.codegen.tvm.driver import step_driver as pool
    from inferir.codegen.tvm.source import Param, TaskKernel, Writer, entry_head

    def kernel(name: str, tasks: str, params: str, *statements: str) -> TaskKernel:
        listed = tuple(Param(p, "float32" if p == "logits" else "int32") for p in params.split())
        w = Writer()
        w.line("@T.prim_func(private=True)")
        with w.block(entry_head(name, listed)):
            for p in listed:
                w.line(f'{p.name.upper()} = T.decl_buffer((1,), "{p.dtype}", data={p.name})')
            w.lines(statements)
            w.line("return T.int32(0)")
        return TaskKernel(name, listed, w.text(), tasks)

    kernels = [
        kernel("mix", "n_t", "ids positions step x", "X[task] = IDS[task] + POSITIONS[task] * STEP[0]"),
        kernel("write", "n_t", "x slots cache", "CACHE[SLOTS[task]] = X[task]"),
        kernel(
            "read",
            "n_a",
            "cache block_tables attn_items y",
            "for i in range(ATTN_ITEMS[task * 6 + 2]):",
            "    p: T.let[T.int32] = ATTN_ITEMS[task * 6 + 3] + i",
            "    block: T.let[T.int32] = BLOCK_TABLES[ATTN_ITEMS[task * 6] * 16 + p // 4]",
            "    Y[ATTN_ITEMS[task * 6 + 1] + i] = CACHE[block * 4 + p % 4]",
        ),
        kernel(
            "pick",
            "n_r",
            "y rows logits tokens",
            f"TOKENS[task] = Y[ROWS[task]] % {COMPILED_VOCAB}",
            f"for i in range({COMPILED_VOCAB}):",
            f"    LOGITS[task * {COMPILED_VOCAB} + i] = T.float32(0)",
            f"LOGITS[task * {COMPILED_VOCAB} + TOKENS[task]] = T.float32(1)",
        ),
    ]
    target = Target.host()
    root = tmp_path_factory.mktemp("artifact")
    (root / "kernels").mkdir()
    (root / "weights").mkdir()
    for name in ("prefill", "decode"):
        (root / "kernels" / f"{name}.so").write_bytes(build_module(pool.bucket_module_source(kernels), target))
    (root / "weights" / "model.safetensors").write_bytes(bytes(64) + np.array([3], np.int32).tobytes() + bytes(60))
    arguments: list[tuple[Arg, ...]] = [
        (InputArg("ids"), InputArg("positions"), WeightArg("step"), ArenaArg(0)),
        (ArenaArg(0), InputArg("slots"), KVArg(0, 0, "k")),
        (KVArg(0, 0, "k"), InputArg("block_tables"), InputArg("attn_items"), ArenaArg(256)),
        (ArenaArg(256), InputArg("rows"), OutputArg("logits"), OutputArg("tokens")),
    ]
    records = tuple(
        KernelRecord(
            id=i,
            name=k.name,
            region=k.name,
            anchor="rowwise",
            params=tuple(KernelParam(name=p.name, dtype=p.dtype) for p in k.params),
        )
        for i, k in enumerate(kernels)
    )

    def bucket(name: str, lo: int, hi: int, decode: bool) -> BucketRecord:
        return BucketRecord(
            name=name,
            lo=lo,
            hi=hi,
            decode=decode,
            library=f"kernels/{name}.so",
            kernels=records,
            program=tuple(Call(kernel=i, args=a) for i, a in enumerate(arguments)),
            attn_tile=1 if decode else 4,
        )

    words = mask_words(COMPILED_VOCAB)
    inputs = tuple(
        IORecord(name=i.name, dtype=i.dtype, shape=tuple(words if d == WORDS else d for d in i.dims))
        for i in STEP_INPUTS.values()
        if i.name not in ("lengths", "argmax_rows")
    )
    outputs = (
        IORecord(name="tokens", dtype=DType.I32, shape=("R",)),
        IORecord(name="logits", dtype=DType.F32, shape=("R", COMPILED_VOCAB)),
    )
    spec = AttentionSpec(block_size=BLOCK, kv_heads=1, head_dim=1, value_dim=1, dtype=DType.F32)
    write_manifest(
        root,
        Manifest(
            model=ModelRecord(
                name="mix",
                architecture="Mix",
                dtype=DType.F32,
                vocab_size=COMPILED_VOCAB,
                hidden_size=1,
                num_layers=1,
                eos_token_ids=(COMPILED_VOCAB - 1,),
            ),
            target=target,
            limits=limits(max_tokens=32, block_size=BLOCK),
            memory=MemoryRecord(weight_bytes=64, arena_bytes=512, scratch_bytes=0, kv_block_bytes=spec.page_bytes),
            inputs=inputs,
            outputs=outputs,
            kv=(KVCacheGroup(spec=spec, layers=(0,)),),
            buckets=(bucket("prefill", 1, 33, False), bucket("decode", 1, 9, True)),
            weights={
                "step": TensorRecord(file="weights/model.safetensors", offset=64, nbytes=4, dtype=DType.I32, shape=(1,))
            },
            files=file_records(root),
        ),
    )
    return root
