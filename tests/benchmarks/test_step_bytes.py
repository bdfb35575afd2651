"""A step of few tokens moves the bytes it must: each weight once, the visible keys and values, what fusion leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path

import families
import numpy as np
import pytest
from artifacts import VOCAB, write_model
from safetensors.torch import load_file

from inferir.codegen.backend import Context
from inferir.codegen.backends import backend_for
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.library import BuiltBucket, distinct, lower_bucket
from inferir.compile.assemble import bucket_records
from inferir.compile.compile_types import CompileOptions, DebugOptions
from inferir.compile.compiler import capture, lower, resolve
from inferir.frontend.source.model_source import load_source
from inferir.ir.contract.bucket import default_buckets
from inferir.ir.contract.manifest import BucketRecord, WeightArg
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Node
from inferir.passes.manager import PipelineResult
from inferir.profile.region_work import Work, does_the_work, region_work

LAYERS, HIDDEN, INNER = 2, 64, 160
Q, KV = 4 * 16, 2 * 16  # heads, and heads that are cached, times their width
BF16 = 2
BEFORE = 9  # cached tokens of the first sequence of a step; each other has one more than the one before it

# The operations of a step, and how many bf16 values each reads from or writes to the arena per token. Logits are f32.
NORM = ("rms_norm", HIDDEN + HIDDEN)
LAYER = [
    ("linear", HIDDEN + Q + 2 * KV),
    ("rotary_kv_write", Q + 2 * KV + Q),
    ("attention", Q + Q),
    ("attention_merge", 0),  # of split sequences only
    ("linear_add", Q + HIDDEN + HIDDEN),
    NORM,
    ("linear_gated_act", HIDDEN + INNER),
    ("linear_add", INNER + HIDDEN + HIDDEN),
]
STEP = [
    ("embedding_rms_norm", HIDDEN + HIDDEN),
    *LAYER,
    *[NORM, *LAYER] * (LAYERS - 1),
    ("gather_rms_norm", HIDDEN + HIDDEN),
    ("linear", HIDDEN + 2 * VOCAB),
    ("draw", 2 * VOCAB + 2),
    ("gather_rms_norm", 0),  # of arg-max rows, as all of the next ones
    *[(f"argmax_{part}", 0) for part in ("prepare", "prefilter", "floor", "rescore", "pick")],
]
GREEDY = 6  # operations for arg-max rows
GREEDY_STEP = [
    *STEP[: -3 - GREEDY],
    *[(name, 0) for name, _ in STEP[-3 - GREEDY : -GREEDY]],
    ("gather_rms_norm", HIDDEN + HIDDEN),
    ("argmax_prepare", 0),
    ("argmax_prefilter", HIDDEN + 2),
    *STEP[-3:],
]


class Program:
    """A tiny Llama in bf16 lowered for the buckets whose steps are bound by memory; nothing is built."""

    def __init__(self, model: Path) -> None:
        options = CompileOptions(dtype="bf16", max_num_batched_tokens=64, max_num_seqs=16)
        source = load_source(str(model), options.dtype)
        captured = capture(source, options, CompileCache(None))
        options = resolve(options, captured.facts)
        target = Target.named("x86-64-v4+bf16+vnni")
        self.result: PipelineResult = lower(captured, options, target, DebugOptions())
        self.regions: Mapping[str, Node] = distinct(op.region for op in self.result.plan.ops)
        contexts = [Context(b, target, options.limits) for b in default_buckets(16)]
        backend = backend_for(target)
        metas = {c.bucket: lower_bucket(backend, self.regions, c).meta for c in contexts}
        self.buckets = bucket_records(self.result, [BuiltBucket(b, m, b"", ".so", "") for b, m in metas.items()])
        self.weights = self.result.graph.weights()
        self.checkpoint = load_file(model / "model.safetensors")

    def work(self, bucket: BucketRecord, tokens: int, greedy: bool = False, **before: int) -> list[Work]:
        """What each operation has to do in a step of `tokens` sequences that decode. `before`: cached tokens of the
        first of them, by input of work items, where it is not `BEFORE`.
        """
        items = {
            str(g.items): np.array(
                [[s, s, 1, before.get(str(g.items), BEFORE) + s, -1, 0] for s in range(tokens)], np.int32
            )
            for g in self.result.kv
        }
        rows, without = (0, tokens) if greedy else (tokens, 0)
        counts = StepCounts(tokens, tokens, rows, tokens, argmax=without)
        found = []
        for call in bucket.program:
            kernel = bucket.kernels[call.kernel]
            work = region_work(self.regions[kernel.region], counts, items)
            found.append(work if does_the_work(kernel.name) else Work())
        return found


@pytest.fixture(scope="module", params=[False, True], ids=["own-head", "tied-head"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(write_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=request.param))


def test_each_weight_is_an_operand_of_one_operation(program: Program) -> None:
    """But for the rotary tables, of which each layer looks up the rows of its tokens' positions.

    The embedding table is looked up as well; if it is the head's weight too, the head has a packed copy of its own.
    """
    for bucket in program.buckets:
        read = Counter(arg.name for call in bucket.program for arg in call.args if isinstance(arg, WeightArg))
        tables = {name for name in program.weights if name.endswith((".cos", ".sin"))}
        assert len(tables) == 2
        of_choice = {name for name in program.weights if ".int8_rows." in name}
        assert len(of_choice) == 3
        (head,) = {name.split(".int8_rows")[0] for name in of_choice}
        times = (
            dict.fromkeys(tables, LAYERS)
            | dict.fromkeys(of_choice, 5)
            | {f"{head}.panels": 1 + 5, "model.norm.weight": 2}
        )
        assert read == {name: times.get(name, 1) for name in program.weights}


def test_packed_weights_are_those_of_the_checkpoint(program: Program) -> None:
    """In bytes: all matrices in the layers and the head, whose outputs are filled up to whole blocks of 64."""
    matrices = {n: t for n, t in program.checkpoint.items() if "_proj." in n}
    assert len(matrices) == 7 * LAYERS
    outputs = -(-VOCAB // 64) * 64
    needed = BF16 * (sum(t.numel() for t in matrices.values()) + outputs * HIDDEN)
    for bucket in program.buckets:
        names = {arg.name for call in bucket.program for arg in call.args if isinstance(arg, WeightArg)}
        packed = [program.weights[name].type for name in names if name.endswith(".panels")]
        assert sum(prod(t.shape) * t.dtype.itemsize for t in packed) == needed
        for tokens in (bucket.lo, bucket.hi - 1):
            visible = sum(BEFORE + s + 1 for s in range(tokens))
            cached = BF16 * LAYERS * visible * 2 * KV
            assert sum(w.memory for w in program.work(bucket, tokens)) == needed + cached
            # Arg-max rows read a byte per weight of the head, and four numbers per output.
            less = BF16 * outputs * HIDDEN - outputs * (HIDDEN + 4 * 4)
            assert sum(w.memory for w in program.work(bucket, tokens, greedy=True)) == needed + cached - less


def test_operations_of_a_step_and_the_activations_between_them(program: Program) -> None:
    for bucket in program.buckets:
        names = [bucket.kernels[call.kernel].name.split("_", 1)[1] for call in bucket.program]
        for tokens in (bucket.lo, bucket.hi - 1):
            values = [w.activations / (BF16 * tokens) for w in program.work(bucket, tokens)]
            assert list(zip(names, values, strict=True)) == STEP
            values = [w.activations / (BF16 * tokens) for w in program.work(bucket, tokens, greedy=True)]
            assert list(zip(names, values, strict=True)) == GREEDY_STEP


def test_attention_reads_what_the_work_items_of_its_reach_say(tmp_path: Path) -> None:
    """A window's items count positions from the beginning of its block table."""
    program = Program(families.write(families.gemma3(), tmp_path / "model"))
    bucket = program.buckets[0]
    (windowed, full) = program.result.kv
    assert (windowed.items, full.items) == ("attn_items.0", "attn_items.1")

    def visible(**before: int) -> int:
        work = program.work(bucket, 1, **before)
        named = [bucket.kernels[call.kernel].name for call in bucket.program]
        cached = sum(w.memory for w, name in zip(work, named, strict=True) if name.endswith("_attention"))
        return cached // (BF16 * 2 * 24)  # keys and values of the one head

    assert visible(**{"attn_items.0": 3, "attn_items.1": 200}) == 4 + 201
    assert visible(**{"attn_items.0": 30, "attn_items.1": 200}) == 8 + 201
