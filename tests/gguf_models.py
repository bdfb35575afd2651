"""Tiny random GGUF models written by the tests, byte by byte, so that they can be wrong in any way.

Weights are stored under the format's conventions: rows of llama's query and key heads in pairs, gemma's norms with one
added, GPT-2's matrices as [out, in].
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"u8": (0, "B"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q")}
CODES |= {"i64": (11, "q"), "f64": (12, "d"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h")}
TOKENS = 272
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 512


@dataclass
class Gguf:
    """A file to be written. keys: (name, kind, value); a kind is one of CODES, "text", or either with " list".
    tensors: (name, array, number of the element type); arrays are written as they are.
    """

    keys: list[tuple[str, str, Any]] = field(default_factory=list)
    tensors: list[tuple[str, np.ndarray, int]] = field(default_factory=list)

    def set(self, key: str, kind: str, value: Any) -> Gguf:
        """A copy with this key instead of any of that name."""
        rest = [entry for entry in self.keys if entry[0] != key]
        return replace(self, keys=[*rest, (key, kind, value)])

    def drop(self, key: str) -> Gguf:
        return replace(self, keys=[entry for entry in self.keys if entry[0] != key])

    def tensor(self, name: str, values: np.ndarray, kind: int = 0) -> Gguf:
        """A copy with this tensor instead of any of that name."""
        rest = [entry for entry in self.tensors if entry[0] != name]
        return replace(self, tensors=[*rest, (name, values, kind)])

    def without(self, name: str) -> Gguf:
        return replace(self, tensors=[entry for entry in self.tensors if entry[0] != name])

    def get(self, key: str) -> Any:
        return next(value for name, _, value in self.keys if name == key)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path

    def to_bytes(self, alignment: int = 32) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        for key, kind, value in self.keys:
            head += _text(key) + _value(kind, value)
        offset, data = 0, b""
        for name, values, kind in self.tensors:
            shape = values.shape if kind in (0, 1) else _row_shape(values, kind)
            head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            head += struct.pack("<IQ", kind, offset)
            raw = np.ascontiguousarray(values, dtype={0: np.float32, 1: np.float16}.get(kind, np.uint8)).tobytes()
            raw += b"\0" * (-len(raw) % alignment)
            data, offset = data + raw, offset + len(raw)
        return head + b"\0" * (-len(head) % alignment) + data


def _row_shape(values: np.ndarray, kind: int) -> tuple[int, ...]:
    """Shape in elements of rows of blocks (Q8_0: 34 bytes for 32 elements)."""
    assert kind == 8
    return (*values.shape[:-1], values.shape[-1] // 34 * 32)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: str, value: Any) -> bytes:
    if kind == "text":
        return struct.pack("<I", 8) + _text(value)
    if kind == "text list":
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(v) for v in value)
    if kind.endswith(" list"):
        number, code = CODES[kind.removesuffix(" list")]
        return struct.pack(f"<IIQ{len(value)}{code}", 9, number, len(value), *value)
    number, code = CODES[kind]
    return struct.pack(f"<I{code}", number, value)


def vocabulary(gguf: Gguf, size: int = TOKENS, count: int = 128) -> Gguf:
    """A tokenizer of three control tokens, `count` bytes (with 128 every token is whole UTF-8), and letters."""
    letters = [chr(0x100 + i) for i in range(size - 3 - count)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(count)), *letters]
    scores = [0.0] * (3 + count) + [-float(i) for i in range(len(letters))]
    gguf = gguf.set("tokenizer.ggml.model", "text", "llama").set("tokenizer.ggml.tokens", "text list", tokens)
    gguf = gguf.set("tokenizer.ggml.scores", "f32 list", scores)
    gguf = gguf.set("tokenizer.ggml.token_type", "i32 list", [2, 3, 3, *[6] * count, *[1] * len(letters)])
    for name, value in (("bos", 1), ("eos", 2), ("unknown", 0)):
        gguf = gguf.set(f"tokenizer.ggml.{name}_token_id", "u32", value)
    return gguf


def _draw(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Norms near 1, biases near 0, matrices large enough that attention is far from uniform."""
    if len(shape) == 1:
        return (1.0 + 0.1 * generator.standard_normal(shape)).astype(np.float32)
    return (generator.standard_normal(shape) * 1.6 / np.sqrt(shape[-1])).astype(np.float32)


def tiny(architecture: str, seed: int = 0, **keys: Any) -> Gguf:
    """A model of `architecture` with two layers; `keys` are further keys ARCH.… with `__` for a dot, and replace."""
    spec = FAMILIES[architecture]
    gguf = Gguf().set("general.architecture", "text", architecture).set("general.name", "text", "tiny")
    head = spec.head_dim or HIDDEN // HEADS
    sizes = {"context_length": CONTEXT, "embedding_length": HIDDEN, "block_count": spec.layers}
    sizes |= {"feed_forward_length": FEED_FORWARD, "attention.head_count": HEADS, "attention.head_count_kv": spec.kv}
    for name, value in sizes.items():
        gguf = gguf.set(f"{architecture}.{name}", "u32", value)
    gguf = gguf.set(f"{architecture}.attention.{spec.epsilon}", "f32", 1e-5)
    if spec.head_dim:
        gguf = gguf.set(f"{architecture}.attention.key_length", "u32", head)
        gguf = gguf.set(f"{architecture}.attention.value_length", "u32", head)
    for name, value in {**spec.keys, **keys}.items():
        kind = "bool" if isinstance(value, bool) else "u32" if isinstance(value, int) else "f32"
        kind = "text" if isinstance(value, str) else kind
        gguf = gguf.set(f"{architecture}.{name.replace('__', '.')}", kind, value)
    gguf = vocabulary(gguf)
    letters = {"h": HIDDEN, "v": TOKENS, "c": CONTEXT, "f": FEED_FORWARD, "g": 2 * FEED_FORWARD, "d": head}
    letters |= {"q": HEADS * head, "k": spec.kv * head, "p": (HEADS + 2 * spec.kv) * head}
    generator = np.random.default_rng(seed)
    for name, shape in spec.tensors.items():
        for i in range(spec.layers if "{i}" in name else 1):
            values = _draw([letters[x] for x in shape.split()], generator)
            if name.endswith(".bias"):
                values = values - np.float32(1.0)
            gguf = gguf.tensor(name.format(i=i), values)
    return gguf


@dataclass(frozen=True)
class Spec:
    tensors: Mapping[str, str]
    epsilon: str = "layer_norm_rms_epsilon"
    keys: Mapping[str, Any] = field(default_factory=dict)
    head_dim: int = 0
    layers: int = LAYERS
    kv: int = KV_HEADS


def _names(text: str) -> dict[str, str]:
    """Lines of "name: shape", layers' names without `blk.N.`."""
    out = {}
    for line in text.strip().splitlines():
        name, shape = (part.strip() for part in line.split(":"))
        outer = name.startswith(("token_embd", "output_norm", "output.", "position_embd"))
        out[name if outer else f"blk.{{i}}.{name}"] = shape
    return out


_TOP = "token_embd.weight: v h\noutput_norm.weight: h\nattn_norm.weight: h\nffn_norm.weight: h\n"
_QKV = "attn_q.weight: q h\nattn_k.weight: k h\nattn_v.weight: k h\nattn_output.weight: h q\n"
_MLP = "ffn_gate.weight: f h\nffn_up.weight: f h\nffn_down.weight: h f\n"
_HEAD = "output.weight: v h\n"
_QKV_BIAS = "attn_q.bias: q\nattn_k.bias: k\nattn_v.bias: k\n"
_NORM_BIAS = "output_norm.bias: h\nattn_norm.bias: h\nffn_norm.bias: h\n"
_POST = "post_attention_norm.weight: h\npost_ffw_norm.weight: h\n"
_HEAD_NORMS = "attn_q_norm.weight: d\nattn_k_norm.weight: d\n"
_TWO = "ffn_up.weight: f h\nffn_down.weight: h f\n"

FAMILIES: dict[str, Spec] = {
    "llama": Spec(_names(_TOP + _QKV + _MLP + _HEAD), keys={"rope.dimension_count": 16, "rope.freq_base": 1e4}),
    "qwen2": Spec(_names(_TOP + _QKV + _QKV_BIAS + _MLP), keys={"rope.freq_base": 1e6}),
    "qwen3": Spec(_names(_TOP + _QKV + _HEAD_NORMS + _MLP), keys={"rope.freq_base": 1e6}, head_dim=32),
    "gemma": Spec(_names(_TOP + _QKV + _MLP), head_dim=32, kv=1),
    "gemma2": Spec(
        _names(_TOP + _QKV + _POST + _MLP),
        keys={"attention.sliding_window": 16, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 9.0},
        head_dim=32,
    ),
    "gemma3": Spec(
        _names(_TOP + _QKV + _POST + _HEAD_NORMS + _MLP),
        keys={"attention.sliding_window": 16, "rope.freq_base": 1e6},
        head_dim=32,
        layers=7,
    ),
    "phi3": Spec(
        _names(
            _TOP + "attn_qkv.weight: p h\nattn_output.weight: h q\nffn_up.weight: g h\nffn_down.weight: h f\n" + _HEAD
        ),
        keys={"rope.dimension_count": 16, "rope.freq_base": 1e4},
    ),
    "starcoder2": Spec(
        _names(
            _TOP + _QKV + _QKV_BIAS + "attn_output.bias: h\n" + _NORM_BIAS + _TWO + "ffn_up.bias: f\nffn_down.bias: h"
        ),
        epsilon="layer_norm_epsilon",
        keys={"rope.freq_base": 1e5},
    ),
    "gpt2": Spec(
        _names(
            _TOP + _NORM_BIAS + "position_embd.weight: c h\nattn_qkv.weight: p h\nattn_qkv.bias: p\n"
            "attn_output.weight: h h\nattn_output.bias: h\n" + _TWO + "ffn_up.bias: f\nffn_down.bias: h"
        ),
        epsilon="layer_norm_epsilon",
        kv=HEADS,
    ),
    "stablelm": Spec(
        _names(_TOP + _NORM_BIAS + _QKV + _MLP + _HEAD),
        epsilon="layer_norm_epsilon",
        keys={"rope.dimension_count": 4, "use_parallel_residual": False},
    ),
    "nemotron": Spec(
        _names(_TOP + _NORM_BIAS + _QKV + _TWO + _HEAD), epsilon="layer_norm_epsilon", keys={"rope.dimension_count": 8}
    ),
}


def factors(count: int, seed: int = 7, low: float = 1.0, high: float = 6.0) -> np.ndarray:
    """Divisors of rotary frequencies."""
    return np.random.default_rng(seed).uniform(low, high, count).astype(np.float32)


def cases() -> dict[str, Gguf]:
    """Every family, and every rotary scaling, by name: the models whose figures `data/gguf_logits.json` holds."""
    out = {name: tiny(name) for name in FAMILIES}
    scaled = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64}
    for arch in ("llama", "qwen2", "qwen3", "gemma3", "phi3", "starcoder2", "stablelm"):
        out[f"{arch}-linear"] = tiny(arch, **scaled)
        out[f"{arch}-yarn"] = tiny(arch, **yarn)
    out["llama-none"] = tiny("llama", **{**scaled, "rope__scaling__type": "none"})
    out["llama-legacy"] = tiny("llama", rope__scale_linear=4.0)
    out["llama-factor-0"] = tiny("llama", **{**scaled, "rope__scaling__factor": 0.0})
    out["llama-yarn-no-original"] = tiny("llama", **yarn).drop("llama.rope.scaling.original_context_length")
    out["llama-yarn-attn"] = tiny("llama", **yarn, rope__scaling__attn_factor=1.3)
    out["llama-attn-factor"] = tiny("llama", rope__scaling__attn_factor=1.2)
    out["llama-freqs"] = tiny("llama").tensor("rope_freqs.weight", factors(8))
    out["llama-freqs-yarn"] = tiny("llama", **yarn).tensor("rope_freqs.weight", factors(8))
    out["llama-bias"] = _biased(tiny("llama"))
    out["llama-head-dim"] = tiny("llama", seed=3).set("llama.attention.key_length", "u32", 16)
    out["llama-f16"] = _half(tiny("llama"))
    out["llama-q8"] = _q8(tiny("llama"))
    out["qwen2-untied"] = tiny("qwen2").tensor("output.weight", _draw([TOKENS, HIDDEN], np.random.default_rng(5)))
    out["phi3-partial"] = tiny("phi3").set("phi3.rope.dimension_count", "u32", 12)
    out["gemma3-period"] = tiny("gemma3", attention__sliding_window_pattern=3, rope__freq_base_swa=5000.0)
    out["gemma3-softcap"] = tiny("gemma3", final_logit_softcapping=7.0)
    out["gemma3-no-window"] = tiny("gemma3").drop("gemma3.attention.sliding_window")
    out["stablelm-parallel"] = parallel_stablelm()
    for arch in ("phi3", "llama"):
        out[f"{arch}-longrope"] = longrope(arch)
    return out


def longrope(architecture: str, original: int = 256) -> Gguf:
    keys = {"rope__scaling__type": "longrope", "rope__scaling__original_context_length": original}
    gguf = tiny(architecture, **keys, rope__scaling__attn_factor=1.19)
    return gguf.tensor("rope_factors_long.weight", factors(8, 8)).tensor(
        "rope_factors_short.weight", factors(8, 9, 0.8, 1.5)
    )


def parallel_stablelm() -> Gguf:
    gguf = tiny("stablelm").set("stablelm.use_parallel_residual", "bool", True)
    for i in range(LAYERS):
        gguf = gguf.without(f"blk.{i}.ffn_norm.weight").without(f"blk.{i}.ffn_norm.bias")
    return gguf


def _biased(gguf: Gguf) -> Gguf:
    """With biases of query and value, but none of key and output."""
    generator = np.random.default_rng(11)
    for i in range(LAYERS):
        for name, size in (("attn_q", HIDDEN), ("attn_v", HIDDEN // 2)):
            gguf = gguf.tensor(f"blk.{i}.{name}.bias", generator.standard_normal(size).astype(np.float32))
    return gguf


def _half(gguf: Gguf) -> Gguf:
    for name, values, _ in list(gguf.tensors):
        if values.ndim == 2:
            gguf = gguf.tensor(name, values.astype(np.float16), 1)
    return gguf


def _q8(gguf: Gguf) -> Gguf:
    """Every matrix as blocks of 32: a half-precision scale, then 32 signed bytes."""
    for name, values, _ in list(gguf.tensors):
        if values.ndim == 2:
            gguf = gguf.tensor(name, to_q8(values), 8)
    return gguf


def to_q8(values: np.ndarray) -> np.ndarray:
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    whole = np.clip(np.round(blocks / scale.astype(np.float32)), -127, 127).astype(np.int8)
    raw = np.concatenate([scale.view(np.uint8), whole.view(np.uint8)], axis=1)
    return raw.reshape(values.shape[0], -1)


def prompt(count: int) -> list[int]:
    """Ids that look different, none of them special."""
    return [1] + [3 + (i * 97 + i * i * 31) % (TOKENS - 3) for i in range(count - 1)]


def split(gguf: Gguf, folder: Path, count: int, name: str = "model") -> list[Path]:
    """Write a model as `count` parts; the first has all keys."""
    per = -(-len(gguf.tensors) // count)
    out = []
    for i in range(count):
        part = Gguf(gguf.keys if i == 0 else [], gguf.tensors[i * per : (i + 1) * per])
        part = part.set("split.no", "u16", i).set("split.count", "u16", count)
        part = part.set("split.tensors.count", "i32", len(gguf.tensors))
        out.append(part.write(folder / f"{name}-{i + 1:05}-of-{count:05}.gguf"))
    return out
