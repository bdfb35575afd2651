"""`inferir verify`: a good artifact passes in every bucket, a wrong one fails, and the reports say why."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from inferir.ir.artifact import Manifest, file_records, read_manifest, write_manifest
from inferir.ir.errors import InferirError
from inferir.verify import find_model
from inferir.verify_cases import Part
from inferir.verify_checks import KL_MARGIN, TIE, Greedy, Observed, Row, check_all, measure


def damaged(artifact: Path, place: Path, weight: str, factor: float) -> Path:
    """A copy of an f32 artifact with one weight multiplied, and checksums that fit."""
    copy = shutil.copytree(artifact, place)
    manifest = read_manifest(copy)
    record = manifest.weights[weight]
    with open(copy / record.file, "r+b") as file:
        file.seek(record.offset)
        values = np.frombuffer(file.read(record.nbytes), np.float32) * np.float32(factor)
        file.seek(record.offset)
        file.write(values.tobytes())
    write_manifest(copy, msgspec.structs.replace(manifest, files=file_records(copy)))
    return copy


def test_a_good_artifact_passes(cli: Callable[..., Any], tiny_artifact: Path, tiny_model: Path) -> None:
    result = cli("verify", tiny_artifact, "--model", tiny_model, "--json")
    report = result.json
    assert (result.status, report["passed"], report["dtype"]) == (0, True, "f32")
    assert [c["name"] for c in report["checks"]] == ["logits", "greedy ids", "batch invariance", "coverage"]
    kinds = {(r["bucket"], r["kind"]) for r in report["rows"]}
    assert kinds >= {("t1", "decode")} | {(b, k) for b in ("t2-8", "t9-64") for k in ("prompt", "mixed")}
    assert ("t2-8", "decode") in kinds
    assert all(0 < r["max_abs"] < 1e-4 and r["kl"] < 1e-9 and r["top1"] == 1 for r in report["rows"])
    assert all(g["matched"] == g["tokens"] == 32 for g in report["greedy"])


def test_bf16_is_compared_with_eager_bf16(cli: Callable[..., Any], tiny_artifact_bf16: Path, tiny_model: Path) -> None:
    result = cli("verify", tiny_artifact_bf16, "--model", tiny_model, "--quick", "--json")
    report = result.json
    assert (result.status, report["dtype"]) == (0, "bf16"), report["checks"]
    assert [c["name"] for c in report["checks"]] == ["KL", "batch invariance", "coverage"]
    assert all(0 < r["kl"] < 0.1 and 0 < r["eager_kl"] < 0.1 for r in report["rows"])


def test_a_wrong_weight_fails_and_the_report_says_by_how_much(
    cli: Callable[..., Any], tiny_artifact: Path, tiny_model: Path, tmp_path: Path
) -> None:
    bad = damaged(tiny_artifact, tmp_path / "bad", "model.layers.1.mlp.down_proj.weight.packed", 1.01)
    junit = tmp_path / "junit.xml"
    result = cli("verify", bad, "--model", tiny_model, "--quick", "--junit", junit)
    assert result.status == 1
    words = " ".join(result.out.split())
    assert "FAILED logits largest difference" in words
    assert "passed batch invariance" in words
    assert words.rpartition(" (")[0].endswith("FAILED")
    suite = ET.parse(junit).getroot()
    failures = [c for c in suite.iter("testcase") if c.find("failure") is not None]
    assert suite.attrib["failures"] == str(len(failures))
    assert "logits" in [c.attrib["name"] for c in failures]
    assert suite.attrib["tests"] == str(len(list(suite.iter("testcase"))))
    buckets = {c.attrib["classname"].rpartition(".")[2] for c in suite.iter("testcase")}
    assert {"t1", "t2-8", "t9-64"} <= buckets


def test_the_models_name_finds_it_beside_the_artifact(
    cli: Callable[..., Any], tiny_artifact: Path, tiny_model: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(tiny_artifact)
    art = shutil.copytree(tiny_artifact, tmp_path / "art")
    with pytest.raises(InferirError, match=r"records no path of its model .* name the model .* with --model"):
        find_model(art, manifest)
    (tmp_path / manifest.model.name).symlink_to(tiny_model)
    assert find_model(art, manifest) == str(tmp_path / manifest.model.name)
    assert cli("verify", art, "--quick", "--json").json["model"] == str(tmp_path / manifest.model.name)


def test_a_missing_model_is_one_line(fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path) -> None:
    art = shutil.copytree(tiny_artifact, tmp_path / "art")
    assert "name the model it was compiled from with --model" in fails("verify", art)
    assert "no such model" in fails("verify", art, "--model", tmp_path / "nothing")


def test_another_model_is_refused(fails: Callable[..., str], tiny_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    line = fails("verify", tiny_artifact, "--model", tmp_path)
    assert f"{tmp_path} is a Qwen2ForCausalLM; the artifact was compiled from a LlamaForCausalLM" in line


def row(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "bucket": "t1",
        "kind": "decode",
        "positions": 10,
        "max_abs": 0,
        "mean_abs": 0,
        "kl": 0,
        "top1": 1,
    }
    return Row(**{**values, **changes})


def outcome(manifest: Manifest, rows: list[Row], greedy: list[Greedy], seen: Observed | None = None) -> dict[str, bool]:
    buckets = [row(bucket=b.name, positions=0, eager_kl=rows[0].eager_kl) for b in manifest.buckets]
    checks = check_all([*rows, *buckets], greedy, seen or Observed([], []), manifest, scale=10.0)
    return {c.name: c.passed for c in checks}


def test_ids_may_differ_only_at_a_tie(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    assert outcome(manifest, [row()], [Greedy(3, 8, 8)])["greedy ids"]
    assert outcome(manifest, [row()], [Greedy(3, 8, 8), Greedy(3, 8, 5, TIE / 2)])["greedy ids"]
    assert not outcome(manifest, [row()], [Greedy(3, 8, 8), Greedy(3, 8, 5, TIE * 2)])["greedy ids"]


def test_the_bound_of_f32_grows_with_the_logits(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    assert outcome(manifest, [row(max_abs=1.9e-3)], [])["logits"]
    assert not outcome(manifest, [row(max_abs=2.1e-3)], [])["logits"]
    assert not outcome(manifest, [row(max_abs=float("inf"))], [])["logits"]


def test_the_bound_of_bf16_is_eagers_own(tiny_artifact_bf16: Path) -> None:
    manifest = read_manifest(tiny_artifact_bf16)
    assert outcome(manifest, [row(kl=KL_MARGIN * 0.99e-3, eager_kl=1e-3)], [])["KL"]
    assert not outcome(manifest, [row(kl=KL_MARGIN * 1.01e-3, eager_kl=1e-3)], [])["KL"]
    assert not outcome(manifest, [row(kl=float("nan"), eager_kl=1e-3)], [])["KL"]


def test_coverage(tiny_artifact: Path) -> None:
    checks = check_all([row()], [], Observed([], []), read_manifest(tiny_artifact), 1.0)
    assert next(c for c in checks if c.name == "coverage").detail == "not run: t2-8, t9-64"


def test_other_bits_in_another_step_fail(tiny_artifact: Path) -> None:
    logits = np.arange(12, dtype=np.float32).reshape(3, 4)
    seen = Observed([[1, 2, 3]], [logits.copy()], [Part("t1", "decode", 0, 0, 3), Part("t2-8", "prompt", 0, 0, 3)])
    assert outcome(read_manifest(tiny_artifact), measure(seen, [logits], None), [], seen)["batch invariance"]
    seen.changed["t2-8", "prompt", 0, 1] = logits[1] + np.float32(0.5)
    rows = {r.bucket: r for r in measure(seen, [logits], None)}
    assert (rows["t1"].max_abs, rows["t2-8"].max_abs) == (0.0, 0.5)
    assert rows["t2-8"].mean_abs == pytest.approx(0.5 / 3)
    assert not outcome(read_manifest(tiny_artifact), list(rows.values()), [], seen)["batch invariance"]
