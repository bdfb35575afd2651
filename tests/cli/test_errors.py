"""What can go wrong with models, artifacts and disks: one line that names it, a status, nothing half-made."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from artifacts import SMALL

from inferir.ir.contract.artifact import read_manifest, write_manifest
from inferir.ir.contract.target import Target


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may damage."""
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.fixture
def art(tmp_path: Path) -> Iterator[Path]:
    """Where an artifact would be; nothing may be left there or beside it."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder / "art"
    assert list(folder.iterdir()) == []


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def save(folder: Path, state: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def test_no_such_model(fails: Callable[..., str], art: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "model"
    assert f"no such model: '{missing}'" in fails("compile", missing, "-o", art)
    assert "no such model: 'no-such/model'" in fails("compile", "no-such/model", "-o", art)
    assert "has no config.json" in fails("compile", tmp_path, "-o", art)


def test_an_architecture_that_cannot_be_traced(fails: Callable[..., str], art: Path, tmp_path: Path) -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        vocab_size=64,
    )
    Qwen2MoeForCausalLM(config).save_pretrained(tmp_path / "moe")
    line = fails("compile", tmp_path / "moe", "-o", art)
    assert "model.layers.0.mlp" in line
    assert "aten." in line


def test_a_missing_tensor(fails: Callable[..., str], model: Path, art: Path) -> None:
    state = tensors(model)
    del state["model.layers.1.mlp.up_proj.weight"]
    save(model, state)
    line = fails("compile", model, "-o", art, *SMALL)
    assert "tensor 'model.layers.1.mlp.up_proj.weight' (f32[160, 64]) is missing from the checkpoint" in line


def test_an_extra_tensor(fails: Callable[..., str], model: Path, art: Path) -> None:
    state = tensors(model)
    state["model.layers.1.self_attn.q_proj.bias"] = state["model.norm.weight"].clone()
    save(model, state)
    line = fails("compile", model, "-o", art, *SMALL)
    assert "tensor 'model.layers.1.self_attn.q_proj.bias' in model.safetensors is not used" in line


def test_a_truncated_checkpoint(fails: Callable[..., str], model: Path, art: Path) -> None:
    file = model / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1000)
    line = fails("compile", model, "-o", art, *SMALL)
    assert "model.safetensors" in line
    assert "truncated" in line


def test_a_flipped_byte_in_any_file_of_the_artifact(
    fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(tiny_artifact, tmp_path / "art")
    files = sorted(f for f in copy.rglob("*") if f.is_file())
    assert len(files) > 8
    for file in files:
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle] ^= 1
        file.write_bytes(content)
        line = fails("run", copy, "hello")
        assert str(file) in line
        assert "checksum mismatch" in line
        content[middle] ^= 1
        file.write_bytes(content)


def test_a_truncated_and_a_missing_file(fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_artifact, tmp_path / "art")
    weights = copy / "weights" / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    assert f"{weights}: {size - 1} bytes instead of {size}" in fails("run", copy, "hello")
    weights.unlink()
    assert f"{weights}: missing from the artifact" in fails("run", copy, "hello")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target("cpu", "x86-64-v9", "x86-64-v9", ("avx2", "avx4096")), "x86-64-v9, but this processor lacks avx4096"),
        (Target("cuda", "sm_90", "sm_90"), "compiled for sm_90 (cuda)"),
    ],
)
def test_the_wrong_processor(
    fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path, target: Target, words: str
) -> None:
    copy = shutil.copytree(tiny_artifact, tmp_path / "art")
    write_manifest(copy, msgspec.structs.replace(read_manifest(copy), target=target))
    assert words in fails("run", copy, "hello")


def test_a_full_disk(
    fails: Callable[..., str], tiny_model: Path, art: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERIR_CACHE", str(tmp_path / "cache"))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    line = fails("compile", tiny_model, "-o", art, *SMALL, "--no-cache")
    assert "cannot be written: No space left on device" in line
    assert not (tmp_path / "cache").exists()


def test_a_full_disk_for_the_cache(
    fails: Callable[..., str], tiny_model: Path, art: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERIR_CACHE", str(tmp_path / "cache"))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    line = fails("compile", tiny_model, "-o", art, *SMALL)
    assert f"compile cache {tmp_path / 'cache'}" in line
    assert "No space left on device" in line


def test_a_really_full_disk(fails: Callable[..., str], tiny_model: Path, tmp_path: Path) -> None:
    """On a file system of 128 KiB, where mounting one is allowed."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        line = fails("compile", tiny_model, "-o", place / "art", *SMALL)
        assert "cannot be written: No space left on device" in line
        assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_place_that_is_no_artifact_is_not_replaced(
    fails: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("data")
    assert "exists and is not an artifact" in fails("compile", tiny_model, "-o", tmp_path, *SMALL)
    assert (tmp_path / "precious").read_text() == "data"
