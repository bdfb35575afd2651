"""Finding models: folders, GGUF files, hub ids, and what is said when there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from inferir.frontend.capture.trace import trace
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import FrontendError, ModelNotFoundError
from inferir.ir.graph.dtypes import DType

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]


def test_folder(save_tiny: SaveTiny) -> None:
    folder = save_tiny("llama")
    source = load_source(str(folder))
    assert (source.kind, source.path, source.dtype) == ("folder", folder, DType.F32)
    assert source.config.model_type == "llama"


@pytest.mark.parametrize(
    ("stored", "asked", "served"),
    [
        ("float32", "auto", DType.F32),
        ("bfloat16", "auto", DType.BF16),
        ("float16", "auto", DType.BF16),
        ("bfloat16", "float32", DType.F32),
        ("float32", "bf16", DType.BF16),
        ("float32", DType.BF16, DType.BF16),
    ],
)
def test_served_type(stored: str, asked: Any, served: DType, save_tiny: SaveTiny, edited: Edited) -> None:
    folder = edited(save_tiny("llama"), ("dtype",), torch_dtype=stored)
    assert load_source(str(folder), asked).dtype is served


def test_served_type_of_a_config_that_does_not_say(save_tiny: SaveTiny, edited: Edited) -> None:
    assert load_source(str(edited(save_tiny("llama"), ("dtype",)))).dtype is DType.F32


def test_unsupported_type_is_named(save_tiny: SaveTiny) -> None:
    with pytest.raises(FrontendError, match="dtype 'int8' is not supported; use auto, float32 or bfloat16"):
        load_source(str(save_tiny("llama")), "int8")


@pytest.mark.parametrize("spec", ["/no/such/folder", "./nothing", "model.gguf", "a/b/c", ""])
def test_no_such_model_is_one_line(spec: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such model") as error:
        load_source(spec)
    assert "\n" not in str(error.value)


def test_hub_id_is_downloaded(save_tiny: SaveTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    def snapshot_download(repo_id: str, revision: str | None = None, **_: Any) -> str:
        calls.append((repo_id, revision))
        return str(save_tiny("llama"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = load_source("someone/some-model", revision="v1")
    assert calls == [("someone/some-model", "v1")]
    assert source.name == "someone/some-model"
    assert trace(source).facts.name == "someone/some-model"


def test_hub_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise OSError("404 Client Error\nRepository Not Found")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelNotFoundError, match=r"no such model: 'someone/nothing'.*at revision 'x'.*404") as error:
        load_source("someone/nothing", revision="x")
    assert "\n" not in str(error.value)


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json and no GGUF file"):
        load_source(str(tmp_path))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(FrontendError, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        load_source(str(tmp_path))


def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"PK34")
    with pytest.raises(FrontendError, match="is not a GGUF file"):
        load_source(str(tmp_path / "weights.bin"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "JSON object"), ('{"model_type": "no_such_type"}', "no_such_type")],
)
def test_damaged_config_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FrontendError, match=message) as error:
        trace(load_source(str(tmp_path), "f32"))
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_every_end_of_generation_id_is_a_fact(save_tiny: SaveTiny, edited: Edited) -> None:
    folder = edited(save_tiny("llama"), eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9], "bos_token_id": 3}))
    facts = trace(load_source(str(folder))).facts
    assert facts.eos_token_ids == (5, 9)
    assert facts.bos_token_id == 3
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert trace(load_source(str(folder))).facts.eos_token_ids == (9, 5)


def test_digests_follow_what_they_describe(save_tiny: SaveTiny, edited: Edited) -> None:
    first = load_source(str(edited(save_tiny("llama"))))
    same = load_source(str(edited(save_tiny("llama"))))
    other = load_source(str(edited(save_tiny("llama"), rms_norm_eps=1e-3)))
    assert first.description_digest() == same.description_digest()
    assert first.description_digest() != other.description_digest()
    assert first.description_digest() != load_source(str(first.path), "bf16").description_digest()
    before = first.tokenizer_digest()
    assert before == same.tokenizer_digest()
    (first.path / "tokenizer.json").write_text("{}")
    assert first.tokenizer_digest() != before
