"""The header of a GGUF file: what other readers read, and one line for what cannot be."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf_models import Gguf, cases, tiny

from inferir.frontend.gguf.gguf_format import read_header
from inferir.frontend.gguf.gguf_reference import _reader_class
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import WeightError


def compare(path: Path) -> None:
    """With the reader of the package gguf."""
    ours, theirs = read_header(path), _reader_class()(str(path))
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert dict(ours.values) == fields
    listed = [(t.name, tuple(reversed(t.shape.tolist())), int(t.tensor_type), t.data_offset) for t in theirs.tensors]
    assert [(t.name, t.shape, t.kind, t.offset) for t in ours.tensors] == listed


@pytest.mark.parametrize("name", ["llama-q8", "gemma3", "gpt2", "llama-freqs"])
def test_as_another_reader_reads_it(name: str, tmp_path: Path) -> None:
    compare(cases()[name].set("general.alignment", "u32", 32).write(tmp_path / "model.gguf"))


@pytest.mark.model
def test_a_real_file_as_another_reader_reads_it(smollm2: Path) -> None:
    compare(smollm2)


def test_every_kind_of_value(tmp_path: Path) -> None:
    gguf = Gguf([("general.architecture", "text", "x")])
    wanted = {"a": -3, "b": 2**63, "c": True, "d": 0.5, "e": "ä", "f": [1, 2], "g": ["a", ""], "h": [], "i": [True]}
    kinds = ["i8", "u64", "bool", "f64", "text", "i64 list", "text list", "f32 list", "bool list"]
    for (key, value), kind in zip(wanted.items(), kinds, strict=True):
        gguf = gguf.set(key, kind, value)
    header = read_header(gguf.write(tmp_path / "model.gguf"))
    assert {k: header.values[k] for k in wanted} == wanted
    assert [header.types[k] for k in wanted] == kinds


def raw(version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def key(name: bytes, rest: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + rest


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"GGUF", "the header: the file ends here"),
        (b"GGML" + bytes(40), "this is not a GGUF file"),
        (raw(version=1), "format version 1"),
        (raw(version=0x03000000), "is big-endian"),
        (raw(keys=2**62), "the file ends here"),
        (raw(tensors=2**63, rest=bytes(99)), "the file ends here"),
        (raw(keys=1, rest=key(b"a.b", struct.pack("<I", 77))), "key 'a.b': 77 is not the number of a value type"),
        (raw(keys=1, rest=key(b"a", struct.pack("<IIQ", 9, 8, 2**60))), "key 'a': the file ends here"),
        (raw(keys=1, rest=key(b"a", struct.pack("<IIQ", 9, 4, 2**40))), "key 'a': the file ends here"),
        (raw(keys=1, rest=key(b"a", struct.pack("<IIQ", 9, 9, 1) + bytes(20))), "list of values of type number 9"),
        (raw(keys=1, rest=key(b"a", struct.pack("<IQ", 8, 2) + b"\xff\xff")), "key 'a': a text is not UTF-8"),
        (raw(tensors=1, rest=key(b"t", struct.pack("<I", 5) + bytes(40))), "tensor 't': it has 5 dimensions"),
    ],
)
def test_a_damaged_header_is_one_line(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(WeightError) as error:
        read_header(path)
    assert said in str(error.value)
    assert str(error.value).startswith("bad.gguf: ")


def test_a_name_that_is_not_utf8_is_shown_as_it_can_be(tmp_path: Path) -> None:
    """What only describes the file does no harm."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny("llama").set("general.author", "text", "abc").to_bytes().replace(b"abc", b"a\xffc"))
    assert load_source(str(path), "f32").config.hidden_size == 64


def refusal(data: bytes, folder: Path) -> str:
    path = folder / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(WeightError) as error:
        load_source(str(path), "f32").weights.names()
    return str(error.value)


def test_a_truncated_tensor_is_named(tmp_path: Path) -> None:
    data = tiny("llama").to_bytes()
    assert "model.gguf: tensor 'output.weight': it ends at byte" in refusal(data[:-100], tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rope_freqs.weight", "would not be used"),  # the architecture has no such factors
        ("blk.2.attn_q.weight", "the keys say 2 layers"),
        ("blk.0.attn_sinks.weight", "would not be used"),
    ],
)
def test_a_tensor_nobody_reads_is_named(name: str, said: str, tmp_path: Path) -> None:
    gguf = tiny("qwen2")
    line = refusal(gguf.tensor(name, gguf.tensors[1][1][:8]).to_bytes(), tmp_path)
    assert f"tensor {name!r}" in line
    assert said in line


def test_another_shape_is_named(tmp_path: Path) -> None:
    gguf = tiny("llama")
    (values,) = [v for n, v, _ in gguf.tensors if n == "blk.1.ffn_up.weight"]
    tensors = [(n, v[:-1] if v is values else v, k) for n, v, k in gguf.tensors]
    line = refusal(Gguf(gguf.keys, tensors).to_bytes(), tmp_path)
    assert "tensor 'blk.1.ffn_up.weight' has shape [95, 64], but the keys say [96, 64]" in line


def test_frequency_factors_must_be_numbers_above_zero(tmp_path: Path) -> None:
    gguf = cases()["llama-freqs"]
    (values,) = [v for n, v, _ in gguf.tensors if n == "rope_freqs.weight"]
    line = refusal(gguf.tensor("rope_freqs.weight", values * 0).to_bytes(), tmp_path)
    assert "tensor 'rope_freqs.weight': factors of frequencies must be finite and above 0" in line
    line = refusal(gguf.tensor("rope_freqs.weight", values[:4]).to_bytes(), tmp_path)
    assert "8 frequencies need a factor each" in line


def test_longrope_needs_both_sets_of_factors(tmp_path: Path) -> None:
    gguf = cases()["phi3-longrope"].without("rope_factors_short.weight")
    assert "tensor 'rope_factors_short.weight' is missing" in refusal(gguf.to_bytes(), tmp_path)


def test_longrope_factors_without_longrope_are_named(tmp_path: Path) -> None:
    gguf = cases()["llama-longrope"].set("llama.rope.scaling.type", "text", "linear")
    assert "tensor 'rope_factors_long.weight' and 1 more would not be used" in refusal(gguf.to_bytes(), tmp_path)
