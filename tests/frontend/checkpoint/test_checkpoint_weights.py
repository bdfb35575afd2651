"""Checkpoints: lazy reading, and the account of every tensor."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.capture.trace import TracedModel, trace
from inferir.frontend.checkpoint.checkpoint_files import INDEX
from inferir.frontend.checkpoint.checkpoint_weights import (
    ExpectedWeights,
    FolderWeights,
    Weights,
    WeightWarning,
    resolve,
)
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import WeightError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]


@pytest.fixture(scope="module")
def whole(save_tiny: SaveTiny) -> Path:
    return save_tiny("llama", attention_bias=True)


@pytest.fixture(scope="module")
def sharded(save_tiny: SaveTiny) -> Path:
    return save_tiny("llama", shards=True, attention_bias=True)


@pytest.fixture(scope="module")
def traced(whole: Path) -> TracedModel:
    return trace(load_source(str(whole)))


def check(traced: TracedModel, folder: Path) -> Weights:
    return traced.weights(FolderWeights(folder))


def test_tensors_are_read_as_stored(whole: Path) -> None:
    source, stored = FolderWeights(whole), load_file(whole / "model.safetensors")
    assert source.names() == tuple(sorted(stored))
    for name, tensor in stored.items():
        assert source.type(name) == TensorType(tuple(tensor.shape), DType.F32)
        assert torch.equal(source.load(name), tensor)
        assert source.where(name) == "model.safetensors"


def test_shards_give_the_same_weights(whole: Path, sharded: Path, traced: TracedModel) -> None:
    one, many = FolderWeights(whole), FolderWeights(sharded)
    assert len({many.where(n) for n in many.names()}) > 1
    assert one.names() == many.names()
    assert all(torch.equal(one.load(n), many.load(n)) for n in one.names())
    assert one.fingerprint() == many.fingerprint()
    assert set(check(traced, sharded)) == set(traced.graph.weights())


def test_fingerprint_follows_content_only(whole: Path, edited: Edited) -> None:
    before = FolderWeights(whole).fingerprint()
    folder = edited(whole)
    (folder / "model.safetensors").touch()
    assert FolderWeights(folder).fingerprint() == before
    stat = (folder / "model.safetensors").stat()
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    import os

    os.utime(folder / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert FolderWeights(folder).fingerprint() != before


def test_missing_shard_is_named(sharded: Path, traced: TracedModel, edited: Edited) -> None:
    folder = edited(sharded)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightError, match=f"{shard.name}: the shard is missing.*e.g. 'model"):
        check(traced, folder)


def test_missing_tensor_is_named(sharded: Path, traced: TracedModel, edited: Edited) -> None:
    """Removed from file and index."""
    folder, name = edited(sharded), "model.layers.1.mlp.up_proj.weight"
    index = json.loads((folder / INDEX).read_text())
    shard = index["weight_map"].pop(name)
    (folder / INDEX).write_text(json.dumps(index))
    tensors = load_file(folder / shard)
    del tensors[name]
    save_file(tensors, folder / shard)
    with pytest.raises(WeightError, match=f"tensor '{name}'.* is missing from the checkpoint"):
        check(traced, folder)


def test_tensor_missing_from_its_shard_is_named(sharded: Path, traced: TracedModel, edited: Edited) -> None:
    folder, name = edited(sharded), "model.layers.1.mlp.up_proj.weight"
    shard = json.loads((folder / INDEX).read_text())["weight_map"][name]
    tensors = load_file(folder / shard)
    del tensors[name]
    save_file(tensors, folder / shard)
    with pytest.raises(WeightError, match=f"'{name}' is missing from {shard}"):
        check(traced, folder)


@pytest.mark.parametrize("cut", [100, 20_000])
def test_truncated_file_is_named(cut: int, whole: Path, traced: TracedModel, edited: Edited) -> None:
    file = edited(whole) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(WeightError, match=r"model\.safetensors: truncated: tensor 'model\..*ends at byte"):
        check(traced, file.parent)


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b'{"a":{}}x']
)
def test_damaged_header_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightError, match=r"model\.safetensors"):
        FolderWeights(tmp_path).names()


def test_wrong_shape_is_named(whole: Path, traced: TracedModel, edited: Edited) -> None:
    file, name = edited(whole) / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(file)
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, file)
    with pytest.raises(WeightError, match=rf"'{name}' in model.safetensors has shape \[48, 95\].*\[48, 96\]"):
        check(traced, file.parent)


def test_nan_is_warned_about_once_by_name(whole: Path, traced: TracedModel, edited: Edited) -> None:
    file, name = edited(whole) / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(file)
    tensors[name][3, 4] = float("nan")
    save_file(tensors, file)
    weights = check(traced, file.parent)
    with pytest.warns(WeightWarning, match=f"'{name}' in model.safetensors holds 1 values that are NaN or infinite"):
        weights[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights[name]
        weights["model.norm.weight"]


def test_stray_tensor_is_warned_about_by_name(whole: Path, traced: TracedModel, edited: Edited) -> None:
    file = edited(whole) / "model.safetensors"
    save_file({**load_file(file), "foo.weight": torch.zeros(2)}, file)
    with pytest.warns(WeightWarning, match=r"'foo\.weight' in model.safetensors is not used"):
        check(traced, file.parent)


def test_bias_that_the_config_switches_off_is_an_error(whole: Path, edited: Edited) -> None:
    folder = edited(whole, attention_bias=False)
    with pytest.raises(WeightError, match=r"q_proj\.bias.* or |k_proj\.bias.*attention_bias"):
        check(trace(load_source(str(folder))), folder)


def test_known_leftovers_are_ignored(whole: Path, traced: TracedModel, edited: Edited) -> None:
    file = edited(whole) / "model.safetensors"
    save_file({**load_file(file), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}, file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(traced, file.parent)


def test_weights_are_served_in_the_graph_type(whole: Path) -> None:
    source = load_source(str(whole), "bf16")
    weights = trace(source).weights(source.weights)
    name = "model.layers.0.mlp.down_proj.weight"
    assert weights[name].dtype is torch.bfloat16
    assert torch.equal(weights[name], source.weights.load(name).bfloat16())
    assert weights["const.model.rotary_emb.inv_freq"].dtype is torch.float32
    with pytest.raises(KeyError):
        weights["nothing"]


def test_folder_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"holds no model\.safetensors and no model\.safetensors\.index\.json"):
        FolderWeights(tmp_path).names()
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WeightError, match=r"pytorch_model\.bin is not read, convert it"):
        FolderWeights(tmp_path).names()


def test_shard_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(WeightError, match="is not a safetensors file of this folder"):
        FolderWeights(tmp_path).names()


def test_unsupported_element_type_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4, dtype=torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightError, match=r"'a' in model.safetensors has element type F8_E4M3"):
        FolderWeights(tmp_path).type("a")


def test_renames_and_prefixes() -> None:
    class Names:
        def __init__(self, *names: str) -> None:
            self._names = names

        def names(self) -> tuple[str, ...]:
            return self._names

        def type(self, name: str) -> TensorType:
            return TensorType((2,), DType.F32)

        def where(self, name: str) -> str:
            return "file"

        def load(self, name: str) -> torch.Tensor:
            return torch.zeros(2)

        def fingerprint(self) -> str:
            return ""

    types = {"model.a.weight": ((2,), DType.F32), "lm_head.weight": ((2,), DType.F32)}
    renames = ((r"^embed_out\.", "lm_head."),)
    expected = ExpectedWeights(types=types, base_prefix="model", renames=renames)
    found = resolve(Names("a.weight", "embed_out.weight"), expected)
    assert found == {"model.a.weight": "a.weight", "lm_head.weight": "embed_out.weight"}
    tied = ExpectedWeights(
        types={"model.a.weight": types["model.a.weight"]}, aliases={"lm_head.weight": "model.a.weight"}
    )
    assert resolve(Names("lm_head.weight"), tied) == {"model.a.weight": "lm_head.weight"}


def test_tied_weights_are_one_tensor(save_tiny: SaveTiny) -> None:
    source = load_source(str(save_tiny("llama", tie_word_embeddings=True)))
    assert "lm_head.weight" not in source.weights.names()
    traced = trace(source)
    assert traced.expected.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in traced.graph.weights()
    assert traced.facts.tie_word_embeddings


def test_different_tied_tensors_are_untied_with_a_warning(save_tiny: SaveTiny, edited: Edited) -> None:
    """As transformers does: the checkpoint wins over the config."""
    folder = edited(save_tiny("llama"), tie_word_embeddings=True)
    source = load_source(str(folder))
    with pytest.warns(WeightWarning, match=r"ties 'lm_head.weight' to 'model.embed_tokens.weight'"):
        traced = trace(source)
    assert "lm_head.weight" in traced.graph.weights()
    tied = edited(save_tiny("llama", tie_word_embeddings=True))
    assert source.separate_head == ("lm_head.weight", "model.embed_tokens.weight")
    assert load_source(str(tied)).separate_head is None
    want = model_logits(eager_model(source), [5, 6, 7])
    from inferir.ir.graph.interpreter import interpret

    ids, positions = torch.tensor([5, 6, 7], dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    got = interpret(traced.graph, {"ids": ids, "positions": positions}, traced.weights(source.weights))["logits"]
    assert torch.allclose(got, want, atol=1e-5)


def test_copies_of_the_tied_tensor_are_accepted(save_tiny: SaveTiny, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(save_tiny("llama", tie_word_embeddings=True), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    source = load_source(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace(source)
        traced.weights(source.weights)
    assert "lm_head.weight" not in traced.graph.weights()
