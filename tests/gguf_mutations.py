"""GGUF files that are wrong in one way each: keys removed, doubled, of another type, out of range; tensors renamed,
dropped, of another type; files cut or with a changed byte. Deterministic: case N is the same everywhere.
"""

from __future__ import annotations

import math
import random
import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf_models import FAMILIES, Gguf, tiny

from inferir.frontend.checkpoint.checkpoint_files import WeightWarning
from inferir.frontend.gguf.gguf_file import decisions, end_token_ids, generation_defaults
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import InferirError

# What must come of a case: an error; the unchanged model; either of these; or any model that could be meant.
ERROR, SAME, EITHER, ANY = "error", "same", "either", "any"
REQUIRED = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")


@dataclass(frozen=True)
class Case:
    """bytes of a file, what was done to it, and what must come of it. base: the family it was made from."""

    base: str
    what: str
    data: bytes
    expect: str


@dataclass(frozen=True)
class Result:
    """What came of a file: one line of an error, or a summary of configuration and weights."""

    error: str = ""
    summary: tuple[Any, ...] = ()


def load(path: Path) -> Result:
    """Read a file as a compile does, short of tracing it. Only `InferirError` may be raised inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)
        try:
            source = load_source(str(path), "f32")
            config = source.config.to_dict()
            names = source.weights.names()
            sums = tuple((n, str(source.weights.type(n)), _digest(source.weights.load(n))) for n in names)
            ends = end_token_ids(path), tuple(sorted(generation_defaults(path).items()))
            assert decisions(path)
        except InferirError as error:
            line = str(error)
            assert line
            assert "\n" not in line, line
            assert path.stem.split("-")[0] in line, f"the file is not named: {line}"
            return Result(error=line)
    return Result(summary=(_plain(config), sums, ends))


def _digest(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _plain(value: Any) -> str:
    return repr(sorted(value.items())) if isinstance(value, dict) else repr(value)


def judge(case: Case, result: Result, unchanged: Result) -> str:
    """ "" if the result is right, else what is wrong with it."""
    same = result.summary == unchanged.summary
    if case.expect == ANY or result.error:
        return "" if result.error == "" or case.expect != SAME else f"refused: {result.error}"
    if case.expect == ERROR:
        return "accepted" if not same else "accepted, as if nothing were wrong"
    return "" if same else "accepted, and gives another model"


def bases() -> dict[str, Gguf]:
    """One model per family, with some optional keys."""
    out = {}
    for name in FAMILIES:
        gguf = tiny(name).set("general.quantization_version", "u32", 2).set("tokenizer.ggml.eot_token_id", "u32", 2)
        out[name] = gguf.set("general.sampling.temp", "f32", 0.7)
    return out


def generate(seed: int, count: int) -> Iterator[Case]:
    """`count` cases, spread evenly over the kinds of change."""
    rng = random.Random(seed)
    models = bases()
    names = sorted(models)
    for index in range(count):
        base = names[(index // len(CHANGES)) % len(names)]
        change = CHANGES[index % len(CHANGES)]
        yield change(base, models[base], rng)


def _case(base: str, what: str, gguf: Gguf | bytes, expect: str) -> Case:
    return Case(base, what, gguf if isinstance(gguf, bytes) else gguf.to_bytes(), expect)


def _own_keys(base: str, gguf: Gguf) -> list[tuple[str, str, Any]]:
    return [entry for entry in gguf.keys if entry[0].startswith(base + ".")]


def removed(base: str, gguf: Gguf, rng: random.Random) -> Case:
    key, _, _ = rng.choice(_own_keys(base, gguf))
    needed = key.removeprefix(base + ".") in REQUIRED or "epsilon" in key
    return _case(base, f"{key} removed", gguf.drop(key), ERROR if needed else ANY)


def doubled(base: str, gguf: Gguf, rng: random.Random) -> Case:
    entry = rng.choice(gguf.keys)
    return _case(base, f"{entry[0]} doubled", replace(gguf, keys=[*gguf.keys, entry]), ERROR)


def retyped(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """The same number as another type is right or an error; a text or a list of two never is."""
    key, kind, value = rng.choice(_own_keys(base, gguf))
    other = rng.choice(["text", "f32", "f64", "i64", "u64", "bool", "text list", "f32 list"])
    if other == "text":
        return _case(base, f"{key} as text", gguf.set(key, "text", str(value)), ERROR)
    if other == "text list":
        return _case(base, f"{key} as texts", gguf.set(key, other, ["a", "b"]), ERROR)
    if other == "f32 list":
        return _case(base, f"{key} as list", gguf.set(key, other, [1.0, 2.0]), ERROR)
    if other == "bool":
        return _case(base, f"{key} as bool", gguf.set(key, other, bool(value)), SAME if kind == "bool" else ERROR)
    if other in ("i64", "u64"):
        return _case(base, f"{key} as {other}", gguf.set(key, other, int(value)), SAME if kind == "u32" else ANY)
    return _case(base, f"{key} as {other}", gguf.set(key, other, float(value)), EITHER)


def out_of_range(base: str, gguf: Gguf, rng: random.Random) -> Case:
    key, kind, _ = rng.choice([e for e in _own_keys(base, gguf) if e[1] in ("u32", "f32")])
    if kind == "u32":
        value = rng.choice([0, 1, 3, 2**31, 2**32 - 1, 2**40, 2**63])
        return _case(base, f"{key}={value}", gguf.set(key, "u64", value), ERROR if value >= 2**31 else ANY)
    number = rng.choice([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e38])
    wrong = not math.isfinite(number) or number < 0
    return _case(base, f"{key}={number}", gguf.set(key, "f32", number), ERROR if wrong else ANY)


def negative(base: str, gguf: Gguf, rng: random.Random) -> Case:
    key, _, _ = rng.choice([e for e in _own_keys(base, gguf) if e[1] == "u32"])
    return _case(base, f"{key}=-1", gguf.set(key, "i32", -rng.randint(1, 2**31)), ERROR)


def unknown_key(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """A key of the architecture that nobody knows could change numbers; one of another could not."""
    if rng.random() < 0.5:
        name = rng.choice(["attention.scale_of_tomorrow", "logit_scale", "expert_count", "rope.scaling.alpha", "x"])
        return _case(base, f"{name} added", gguf.set(f"{base}.{name}", "f32", rng.uniform(1.5, 9)), ERROR)
    name = rng.choice(["clip.x", "vendor.setting", "general.languages", "quantize.imatrix.file"])
    return _case(base, f"{name} added", gguf.set(name, "text", "x" * rng.randint(0, 99)), SAME)


def scaling(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """Keys of rotary scaling with values good and bad."""
    name = rng.choice(["type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast", "yarn_ext_factor"])
    key = f"{base}.rope.scaling.{name}"
    if name == "type":
        value = rng.choice(["none", "linear", "yarn", "longrope", "dynamic", "", "YARN", "llama3"])
        wrong = value not in ("none", "linear", "yarn")
        return _case(base, f"{key}={value!r}", gguf.set(key, "text", value), ERROR if wrong else ANY)
    if name == "original_context_length":
        gguf = gguf.set(f"{base}.rope.scaling.type", "text", "yarn")
        count = rng.choice([0, 1, 2, 64, 2**31])
        return _case(base, f"{key}={count}", gguf.set(key, "u32", count), ERROR if count in (0, 2**31) else ANY)
    number = rng.choice([math.nan, -2.0, 0.0, 1e-30, 0.5, 4.0, 1e30])
    wrong = math.isnan(number) or number < 0
    return _case(base, f"{key}={number}", gguf.set(key, "f32", number), ERROR if wrong else ANY)


def layer_list(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """A list for each layer: right if all are the same and there are as many as layers."""
    name = rng.choice(["attention.head_count", "feed_forward_length", "attention.head_count_kv"])
    layers, value = FAMILIES[base].layers, gguf.get(f"{base}.{name}")
    count = rng.choice([0, 1, layers - 1, layers, layers + 1])
    values = [value] * count
    if count and rng.random() < 0.4:
        values[-1] += 1
    right = values == [value] * layers
    return _case(base, f"{name}={values}", gguf.set(f"{base}.{name}", "u32 list", values), SAME if right else ERROR)


def token_ids(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """Ids of tokens that are no ids."""
    key = f"tokenizer.ggml.{rng.choice(['bos', 'eos', 'eot', 'eom'])}_token_id"
    kind, value = rng.choice([("u32", 2**31), ("u32", 272), ("i32", -2), ("text", "2"), ("f32", 2.0), ("bool", True)])
    return _case(base, f"{key}={value!r}", gguf.set(key, kind, value), ERROR)


def fewer_tokens(base: str, gguf: Gguf, rng: random.Random) -> Case:
    tokens = gguf.get("tokenizer.ggml.tokens")
    count = rng.choice([1, 100, 271, 273, 400])
    changed = (tokens + ["more"] * 200)[:count]
    return _case(base, f"{count} tokens", gguf.set("tokenizer.ggml.tokens", "text list", changed), ERROR)


def tensor_renamed(base: str, gguf: Gguf, rng: random.Random) -> Case:
    index = rng.randrange(len(gguf.tensors))
    name, values, kind = gguf.tensors[index]
    new = rng.choice([name + "x", name.upper(), "blk.9." + name, name.replace("blk.0", "blk.1") + ".x", ""])
    tensors = [*gguf.tensors[:index], (new, values, kind), *gguf.tensors[index + 1 :]]
    return _case(base, f"{name} renamed {new!r}", replace(gguf, tensors=tensors), _unless_optional(base, name))


def tensor_dropped(base: str, gguf: Gguf, rng: random.Random) -> Case:
    name = rng.choice(gguf.tensors)[0]
    return _case(base, f"{name} dropped", gguf.without(name), _unless_optional(base, name, dropped=True))


def _unless_optional(base: str, name: str, dropped: bool = False) -> str:
    """Without its output matrix a model is another one; so it is without biases that may be absent."""
    bias = ".attn_" in name or (base == "stablelm" and ".ffn_norm." in name)
    optional = name == "output.weight" or (bias and name.endswith(".bias"))
    return ANY if dropped and optional else ERROR


def tensor_doubled(base: str, gguf: Gguf, rng: random.Random) -> Case:
    name, values, kind = rng.choice(gguf.tensors)
    return _case(base, f"{name} doubled", replace(gguf, tensors=[*gguf.tensors, (name, values, kind)]), ERROR)


def tensor_added(base: str, gguf: Gguf, rng: random.Random) -> Case:
    names = ["rope_freqs.weight.x", "blk.0.attn_sinks.weight", "blk.7.ffn_up.weight", "cls.weight", "blk.x.y", "a"]
    name = rng.choice(names)
    return _case(base, f"{name} added", gguf.tensor(name, np.ones(8, np.float32)), ERROR)


def tensor_reshaped(base: str, gguf: Gguf, rng: random.Random) -> Case:
    index = rng.randrange(len(gguf.tensors))
    name, values, kind = gguf.tensors[index]
    new = rng.choice([values[:-1], values.reshape(1, *values.shape), values[..., :4], np.zeros((0,), np.float32)])
    tensors = [*gguf.tensors[:index], (name, new, kind), *gguf.tensors[index + 1 :]]
    return _case(base, f"{name} of shape {list(new.shape)}", replace(gguf, tensors=tensors), ERROR)


def tensor_retyped(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """Another number of an element type in the list: its data has then another size."""
    name = rng.choice(gguf.tensors)[0]
    data, at = bytearray(gguf.to_bytes()), _entry(gguf, name)
    kind = rng.choice([1, 2, 4, 8, 14, 24, 28, 30, 99, 2**32 - 1])
    struct.pack_into("<I", data, at, kind)
    last = name == gguf.tensors[-1][0]  # what is left of the file behind its smaller data belongs to nothing
    return _case(base, f"{name} of type {kind}", bytes(data), ANY if last else ERROR)


def tensor_moved(base: str, gguf: Gguf, rng: random.Random) -> Case:
    name = rng.choice(gguf.tensors)[0]
    data, at = bytearray(gguf.to_bytes()), _entry(gguf, name) + 4
    (old,) = struct.unpack_from("<Q", data, at)
    new = rng.choice([old + 1, old + 32, 2**63, 2**64 - 32, old ^ 64])
    struct.pack_into("<Q", data, at, new)
    return _case(base, f"{name} at {new}", bytes(data), ERROR)


def _entry(gguf: Gguf, name: str) -> int:
    """Where a tensor's type number stands in the file's bytes."""
    shape = next(values.shape for n, values, _ in gguf.tensors if n == name)
    raw = name.encode()
    entry = struct.pack("<Q", len(raw)) + raw + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return gguf.to_bytes().index(entry) + len(entry)


def truncated(base: str, gguf: Gguf, rng: random.Random) -> Case:
    data = gguf.to_bytes()
    head = data.index(b"token_embd.weight")
    keep = rng.choice([rng.randrange(64), rng.randrange(head), rng.randrange(len(data) - 32), head])
    return _case(base, f"cut to {keep} bytes", data[:keep], ERROR)


def byte_changed(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """A byte of the header. The file may still be right, of another name for instance."""
    data = bytearray(gguf.to_bytes())
    at = rng.randrange(data.index(b"blk.1"))
    data[at] ^= 1 << rng.randrange(8)
    return _case(base, f"byte {at} changed", bytes(data), ANY)


def huge_count(base: str, gguf: Gguf, rng: random.Random) -> Case:
    """Counts in the header and lengths of lists far beyond the file."""
    data = bytearray(gguf.to_bytes())
    tokens = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    at = rng.choice([8, 16, 24, tokens])
    struct.pack_into("<Q", data, at, rng.choice([2**20, 2**40, 2**62, 2**64 - 1]))
    return _case(base, f"huge count at {at}", bytes(data), ERROR)


def architecture(base: str, gguf: Gguf, rng: random.Random) -> Case:
    name = rng.choice(["", "qwen3moe", "llama4", "mamba", "bert", "no such thing", "Llama"])
    return _case(base, f"architecture {name!r}", gguf.set("general.architecture", "text", name), ERROR)


def alignment(base: str, gguf: Gguf, rng: random.Random) -> Case:
    kind, value = rng.choice([("u32", 0), ("u32", 33), ("u64", 32), ("text", "32"), ("u32", 2**31), ("u32", 64)])
    return _case(base, f"alignment {kind} {value}", gguf.set("general.alignment", kind, value), EITHER)


CHANGES: tuple[Callable[[str, Gguf, random.Random], Case], ...] = (
    removed,
    doubled,
    retyped,
    out_of_range,
    negative,
    unknown_key,
    scaling,
    layer_list,
    token_ids,
    fewer_tokens,
    tensor_renamed,
    tensor_dropped,
    tensor_doubled,
    tensor_added,
    tensor_reshaped,
    tensor_retyped,
    tensor_moved,
    truncated,
    byte_changed,
    huge_count,
    architecture,
    alignment,
)
