"""Models split over several GGUF files: all parts are read, and what does not fit is named as a part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_models import Gguf, split, tiny

from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.gguf.gguf_metadata import metadata, part_of
from inferir.frontend.gguf.gguf_weights import GgufWeights
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return split(tiny("llama"), tmp_path, 3)


def refusal(spec: Path) -> str:
    with pytest.raises(InferirError) as error:
        load_source(str(spec), "f32").weights.names()
    assert "\n" not in str(error.value)
    return str(error.value)


def rewrite(path: Path, index: int, **keys: tuple[str, object]) -> None:
    """The second or third part again, with other keys."""
    gguf = tiny("llama")
    per = -(-len(gguf.tensors) // 3)
    part = Gguf([], gguf.tensors[index * per : (index + 1) * per])
    defaults = {"no": ("u16", index), "count": ("u16", 3), "tensors.count": ("i32", len(gguf.tensors))}
    for key, (kind, value) in {f"split.{k}": v for k, v in defaults.items()}.items():
        part = part.set(key, kind, value)
    for key, (kind, value) in keys.items():
        part = part.set(key.replace("__", "."), kind, value)
    part.write(path)


@pytest.mark.parametrize("by_folder", [False, True])
def test_all_parts_are_read(by_folder: bool, parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = GgufWeights(tiny("llama").write(tmp_path / "whole" / "m.gguf"), DType.F32)
    source = load_source(str(parts[0].parent if by_folder else parts[0]), "f32")
    assert source.path == parts[0]
    assert source.weights.names() == whole.names()
    assert all(torch.equal(source.weights.load(n), whole.load(n)) for n in whole.names())
    assert source.weights.where("model.norm.weight") in [p.name for p in parts]
    assert metadata(parts[0])["split.count"] == 3


def test_the_reference_of_verify_reads_all_parts(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = tiny("llama").write(tmp_path / "whole" / "m.gguf")
    ids = [1, 5, 9, 200]
    a, b = (model_logits(eager_model(load_source(str(p), "f32")), ids) for p in (parts[0], whole))
    assert torch.equal(a, b)


def test_digests_cover_every_part(parts: list[Path]) -> None:
    before = load_source(str(parts[0]), "f32")
    marks = before.description_digest(), before.tokenizer_digest(), before.weights.fingerprint()
    data = bytearray(parts[2].read_bytes())
    data[-40] ^= 1
    parts[2].write_bytes(bytes(data))
    after = load_source(str(parts[0]), "f32")
    assert before.path == after.path
    for old, new in zip(
        marks, (after.description_digest(), after.tokenizer_digest(), after.weights.fingerprint()), strict=True
    ):
        assert old != new


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    assert "model-00002-of-00003.gguf: part of the split model" in refusal(parts[0])
    parts[2].unlink()
    assert "model-00002-of-00003.gguf and 1 more" in refusal(parts[0])


def test_another_part_than_the_first(parts: list[Path]) -> None:
    assert "part 2 of 3 of a split model; name the first, model-00001-of-00003.gguf" in refusal(parts[1])


def test_parts_in_each_others_place(parts: list[Path]) -> None:
    a, b = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(b)
    parts[2].write_bytes(a)
    assert "'split.no' is 2, but by its name this is part 1" in refusal(parts[0])


def test_a_part_renamed_to_a_whole_model(parts: list[Path], tmp_path: Path) -> None:
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(parts[0].read_bytes())
    assert "alone.gguf: key 'split.count' says 3 parts" in refusal(alone)


def test_a_wrong_count(parts: list[Path]) -> None:
    rewrite(parts[2], 2, split__count=("u16", 4))
    assert "model-00003-of-00003.gguf: key 'split.count' says 4 parts" in refusal(parts[0])
    rewrite(parts[2], 2, split__count=("text", "3"))
    assert "key 'split.count' is '3'; it must be a count" in refusal(parts[0])


def test_parts_of_different_models(parts: list[Path], tmp_path: Path) -> None:
    rewrite(parts[2], 2, general__architecture=("text", "qwen2"))
    assert "'general.architecture' is not as in model-00001-of-00003.gguf" in refusal(parts[0])
    gguf = tiny("llama")
    split(gguf.tensor("output.weight2", gguf.tensors[0][1]), tmp_path, 3, "other")
    parts[2].write_bytes((tmp_path / "other-00003-of-00003.gguf").read_bytes())
    assert "tensors" in refusal(parts[0])


def test_a_tensor_in_two_parts(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[1].read_bytes())
    rewrite(parts[2], 1, split__no=("u16", 2))
    assert "model-00003-of-00003.gguf: tensor" in refusal(parts[0])
    assert "also in model-00002-of-00003.gguf" in refusal(parts[0])


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    assert "model-00002-of-00003.gguf: tensor" in refusal(parts[0])


def test_names_of_parts() -> None:
    assert part_of(Path("a/My-00001-of-x-00002-of-00012.gguf")) == ("My-00001-of-x", 2, 12)
    assert part_of(Path("model-1-of-2.gguf")) is None


def test_one_part_of_one(tmp_path: Path) -> None:
    (path,) = split(tiny("llama"), tmp_path, 1)
    assert load_source(str(path), "f32").weights.names()


def test_a_folder_of_two_split_models(parts: list[Path]) -> None:
    split(tiny("llama", 1), parts[0].parent, 2, "other")
    assert "several GGUF files (model-00001-of-00003.gguf, other-00001-of-00002.gguf)" in refusal(parts[0].parent)
