"""`inferir compile` of faulty model folders: one line that names the file, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artifacts import SMALL


def without_file(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def with_text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def with_bytes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def with_entry(name: str, **entries: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **entries}))

    return change


def as_folder(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def as_loop(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(name)

    return change


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (without_file("config.json"), "has no config.json"),
        (without_file("model.safetensors"), "holds no model.safetensors"),
        (without_file("tokenizer.json"), "has no tokenizer.json"),
        (with_text("config.json", ""), "config.json cannot be read"),
        (with_text("config.json", "3"), "does not hold a JSON object"),
        (with_bytes("config.json", "{}".encode("utf-16")), "it is not UTF-8"),
        (with_text("config.json", '{"a":' * 20_000 + "1" + "}" * 20_000), "nested too deeply"),
        (with_entry("config.json", num_attention_heads=0), "num_attention_heads is 0"),
        (with_entry("config.json", hidden_size=-64), "hidden_size is -64"),
        (with_entry("config.json", num_hidden_layers=10**9), "num_hidden_layers is 1000000000, but the checkpoint has"),
        (with_entry("config.json", num_hidden_layers=2**40), "num_hidden_layers is 1099511627776"),
        (with_entry("config.json", rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
        (with_entry("config.json", vocab_size=300), "has shape [261, 64], but the model's config wants [300, 64]"),
        (with_entry("config.json", dtype="int8"), "dtype is 'int8'"),
        (with_entry("config.json", model_type=[]), "config.json"),
        (with_entry("config.json", quantization_config={"quant_method": "awq"}), "quantization_config: "),
        (with_text("generation_config.json", "[]"), "generation_config.json does not hold"),
        (with_entry("tokenizer_config.json", chat_template=5), "tokenizer_config.json: chat_template is neither"),
        (with_text("tokenizer.json", "{}"), "tokenizer.json cannot be read"),
        (with_bytes("chat_template.jinja", b"\xff"), "chat_template.jinja cannot be read"),
        (as_folder("tokenizer_config.json"), "tokenizer_config.json cannot be read"),
        (as_folder("model.safetensors"), "model.safetensors of "),
        (as_loop("config.json"), "config.json"),
        (as_loop("model.safetensors"), "model.safetensors of "),
    ],
)
def test_a_fault_is_one_line(
    fault: Callable[[Path], object], message: str, fails: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    folder, out = shutil.copytree(tiny_model, tmp_path / "model"), tmp_path / "out"
    fault(folder)
    assert message in fails("compile", folder, "-o", out, "--no-trace-check", *SMALL)
    assert not out.exists()


@pytest.mark.parametrize("spec", ["", "\0", "x" * 5000, "~nobody-of-this-name/model", "no/such/folder"])
def test_names_that_lead_nowhere(spec: str, fails: Callable[..., str], tmp_path: Path) -> None:
    assert "no such model" in fails("compile", spec, "-o", tmp_path / "out")


def test_the_report_says_what_decided(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> None:
    result = cli("compile", f"{tiny_model}/.", "-o", tmp_path / "out", *SMALL)
    words = " ".join(result.out.split())
    assert f"{tiny_model.name} as f32" in words
    assert "end of text 257 </s>" in words
    assert "config.json: eos_token_id" in words
    shown = " ".join(cli("inspect", tmp_path / "out").out.split())
    assert "What decided" in shown
    assert "end of text 257 </s>" in shown
    found = cli("compile", tiny_model, "-o", tmp_path / "out", *SMALL, "--json").json
    assert found["eos_token_ids"] == [257]
    assert {d["subject"] for d in found["decisions"]} >= {"dtype", "weights", "rope", "tokenizer", "chat template"}
    assert found["decisions"] == cli("inspect", tmp_path / "out", "--json").json["model"]["decisions"]
    assert cli("inspect", tmp_path / "out", "--html", tmp_path / "page.html").status == 0
    page = (tmp_path / "page.html").read_text()
    assert "config.json: eos_token_id" in page
