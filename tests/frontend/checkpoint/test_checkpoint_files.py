"""Which of a folder's files are read: in every case the same ones as transformers, and what is not read is named."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferir.frontend.checkpoint.checkpoint_files import INDEX, SINGLE, WeightWarning, checkpoint_files
from inferir.frontend.checkpoint.checkpoint_weights import FolderWeights
from inferir.frontend.checkpoint.huggingface import api, quiet
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import FrontendError, ModelNotFoundError, WeightError

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]
NAME = "model.norm.weight"


@pytest.fixture(scope="module")
def whole(save_tiny: SaveTiny) -> Path:
    return save_tiny("llama")


@pytest.fixture(scope="module")
def sharded(save_tiny: SaveTiny) -> Path:
    return save_tiny("llama", shards=True)


def add_other_shards(folder: Path, sharded: Path) -> list[str]:
    """Put shards with other weights, and their index, beside what is in `folder`."""
    shutil.copy(sharded / INDEX, folder / INDEX)
    for file in sharded.glob("*.safetensors"):
        save_file({k: v + 1 for k, v in load_file(file).items()}, folder / file.name)
    return sorted(f.name for f in sharded.glob("*.safetensors"))


def as_transformers(folder: Path) -> dict[str, Any]:
    with quiet():
        return dict(api().auto_model.from_pretrained(str(folder), dtype=torch.float32).state_dict())


def assert_read_as_transformers(folder: Path) -> None:
    ours, theirs = FolderWeights(folder), as_transformers(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert set(ours.names()) == set(theirs)
        assert all(torch.equal(ours.load(name), theirs[name]) for name in theirs)


def test_single_file_stands_before_a_stale_index(whole: Path, sharded: Path, edited: Edited) -> None:
    folder = edited(whole)
    shards = add_other_shards(folder, sharded)
    with pytest.warns(WeightWarning, match=rf"model\.safetensors is read.*{INDEX} is not.*{shards[0]}"):
        assert FolderWeights(folder).where(NAME) == SINGLE
    assert_read_as_transformers(folder)


def test_single_file_beside_an_index_without_shards(whole: Path, sharded: Path, edited: Edited) -> None:
    folder = edited(whole)
    shutil.copy(sharded / INDEX, folder / INDEX)
    with pytest.warns(WeightWarning, match=rf"{INDEX} is not: its shards .* are missing"):
        FolderWeights(folder).names()
    assert_read_as_transformers(folder)


def test_single_file_beside_a_damaged_index(whole: Path, edited: Edited) -> None:
    folder = edited(whole)
    (folder / INDEX).write_text("{")
    with pytest.warns(WeightWarning, match=rf"{INDEX} beside it is not: .*damaged"):
        FolderWeights(folder).names()
    assert_read_as_transformers(folder)


def test_index_of_the_single_file_is_no_contradiction(whole: Path, edited: Edited) -> None:
    folder = edited(whole)
    names = load_file(folder / SINGLE)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, SINGLE)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FolderWeights(folder).names()
    assert_read_as_transformers(folder)


@pytest.mark.parametrize(
    "other", ["consolidated.safetensors", "model.fp16.safetensors", "optimizer.safetensors", "a.safetensors"]
)
def test_files_that_nothing_names_are_not_read(other: str, whole: Path, sharded: Path, edited: Edited) -> None:
    for folder in (edited(whole), edited(sharded)):
        save_file({NAME: torch.full((48,), 7.0), "other": torch.zeros(2)}, folder / other)
        with pytest.warns(WeightWarning, match=f"not read, because transformers reads .* only: {other}"):
            assert "other" not in FolderWeights(folder).names()
        assert_read_as_transformers(folder)


def test_only_a_file_of_another_name_is_refused(whole: Path, edited: Edited) -> None:
    folder = edited(whole)
    (folder / SINGLE).rename(folder / "weights.safetensors")
    with pytest.raises(WeightError, match=r"does not read weights\.safetensors under that name"):
        FolderWeights(folder).names()
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        as_transformers(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "tf_model.h5", "flax_model.msgpack"])
def test_other_formats_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(WeightError, match=f"{name} is not read, convert it to safetensors"):
        FolderWeights(tmp_path).names()


def test_config_may_name_the_file(whole: Path, edited: Edited) -> None:
    folder = edited(whole, transformers_weights="special.safetensors")
    save_file({k: v + 2 for k, v in load_file(folder / SINGLE).items()}, folder / "special.safetensors")
    source = load_source(str(folder))
    with pytest.warns(WeightWarning, match=r"only: model\.safetensors"):
        assert source.weights.where(NAME) == "special.safetensors"
    assert torch.equal(source.weights.load(NAME), as_transformers(folder)[NAME])


@pytest.mark.parametrize("name", ["../other.safetensors", "model.bin", 3, "", "missing.safetensors"])
def test_config_may_not_name_just_any_file(name: Any, whole: Path, edited: Edited) -> None:
    folder = edited(whole, transformers_weights=name)
    with pytest.raises(WeightError, match="transformers_weights"):
        load_source(str(folder)).weights.names()


def test_tensors_that_the_index_does_not_name_are_read(sharded: Path, edited: Edited) -> None:
    folder = edited(sharded)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][NAME]
    (folder / INDEX).write_text(json.dumps(index))
    assert NAME in FolderWeights(folder).names()
    assert_read_as_transformers(folder)


def test_a_tensor_in_another_shard_than_stated_is_read(sharded: Path, edited: Edited) -> None:
    folder = edited(sharded)
    index = json.loads((folder / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][NAME] = next(s for s in shards if s != index["weight_map"][NAME])
    (folder / INDEX).write_text(json.dumps(index))
    assert_read_as_transformers(folder)


def test_a_tensor_in_two_shards_is_refused(sharded: Path, edited: Edited) -> None:
    folder = edited(sharded)
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor + 1}, second)
    with pytest.raises(WeightError, match=f"'{name}' is in both {first.name} and {second.name}"):
        FolderWeights(folder).names()


def test_an_index_without_metadata_is_enough(sharded: Path, edited: Edited) -> None:
    folder = edited(sharded)
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({"weight_map": index["weight_map"]}))
    assert FolderWeights(folder).names() == FolderWeights(sharded).names()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}', "[" * 100_000, "\ufeff{}"],
)
def test_damaged_index_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(WeightError, match=f"{INDEX}: the index is damaged"):
        FolderWeights(tmp_path).names()


def test_layout_of_the_hub_cache(whole: Path, tmp_path: Path) -> None:
    """Snapshots are links to blobs that are named after their content."""
    snapshot, blobs = tmp_path / "models--o--m" / "snapshots" / "abc", tmp_path / "models--o--m" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(whole.iterdir())):
        shutil.copy(file, blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:064x}")
    source = load_source(str(snapshot))
    assert source.name == "o/m"
    assert source.weights.where(NAME) == SINGLE
    assert source.weights.fingerprint() == FolderWeights(whole).fingerprint()


@pytest.mark.parametrize("name", [SINGLE, INDEX])
def test_a_dangling_link_or_a_folder_is_named(name: str, sharded: Path, edited: Edited) -> None:
    """Falling back to the other set of weights would serve something that nobody chose."""
    folder = edited(sharded)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("nowhere")
    with pytest.raises(WeightError, match=f"{name} of .* is a link to nothing"):
        FolderWeights(folder).names()
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(WeightError, match=f"{name} of .* is not a file"):
        FolderWeights(folder).names()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SINGLE)
    with pytest.raises(WeightError, match="is not a file"):
        FolderWeights(tmp_path).names()


def test_an_adapter_beside_the_model_is_warned_about(whole: Path, edited: Edited) -> None:
    folder = edited(whole)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    save_file({"x": torch.zeros(2)}, folder / "adapter_model.safetensors")
    with pytest.warns(WeightWarning, match=r"adapter_config\.json: the adapter is not applied"):
        FolderWeights(folder).names()


def test_an_adapter_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    save_file({"x": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"adapter \(adapter_config\.json\) without its base model 'org/base'"):
        load_source(str(tmp_path))
    with pytest.raises(WeightError, match=r"adapter_config\.json says that it holds an adapter"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize(
    ("nested", "method"), [(False, "awq"), (False, "gptq"), (False, "fp8"), (True, "bitsandbytes"), (False, None)]
)
def test_quantised_checkpoints_are_refused_by_name(nested: bool, method: Any, whole: Path, edited: Edited) -> None:
    stated = {"quantization_config": {"quant_method": method, "bits": 4}}
    folder = edited(whole, **({"text_config": stated} if nested else stated))
    with pytest.raises(FrontendError, match=f"quantization_config: .* {method or 'an unnamed method'}"):
        load_source(str(folder))
