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
from artifacts import damaged

from inferir.ir.contract.artifact import read_manifest
from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import InferirError
from inferir.verify.cases import Part
from inferir.verify.checks import (
    KL_MARGIN,
    ROUNDING,
    STRAY,
    TIE,
    Far,
    Greedy,
    Measured,
    Observed,
    Row,
    beyond,
    check_all,
    measure,
)
from inferir.verify.verify_artifact import double_logits, find_model, judge


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
    bad = damaged(tiny_artifact, tmp_path / "bad", "model.layers.1.mlp.down_proj.weight.panels", 1.01)
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


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Mk-1.5B-Q4_K", "Mk-1.5B-Q4_K.gguf"),
        ("Mk-1.5B", "Mk-1.5B.GGUF"),
        ("Big-1.5B", "Big-1.5B-00001-of-00002.gguf"),
        ("org/Mk-1.5B-Instruct", "Mk-1.5B-Instruct/config.json"),
        ("odd [a-z] *name", "odd [a-z] *name.gguf"),
    ],
)
def test_a_model_is_found_by_the_name_that_a_compile_gave_it(
    name: str, file: str, tiny_artifact: Path, tmp_path: Path
) -> None:
    place = tmp_path / file
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"GGUF")
    if "-00001-of-" in file:
        (tmp_path / file.replace("00001", "00002", 1)).write_bytes(b"GGUF")
    manifest = read_manifest(tiny_artifact)
    manifest = msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, name=name))
    found = find_model(tmp_path / "art", manifest)
    assert found == str(place.parent if place.name == "config.json" else place)


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


def outcome(
    manifest: Manifest,
    rows: list[Row],
    greedy: list[Greedy],
    seen: Observed | None = None,
    far: list[Far] | None = None,
    kl: list[float] | None = None,
    eager_kl: list[float] | None = None,
) -> dict[str, bool]:
    buckets = [row(bucket=b.name, positions=0) for b in manifest.buckets]
    measured = Measured([*rows, *buckets], np.array(kl or [0.0]), np.array(eager_kl or [0.0]))
    checks = check_all(measured, greedy, seen or Observed([], []), manifest, 2e-3, far or [])
    return {c.name: c.passed for c in checks}


def test_ids_may_differ_only_at_a_tie(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    assert outcome(manifest, [row()], [Greedy(3, 8, 8)])["greedy ids"]
    assert outcome(manifest, [row()], [Greedy(3, 8, 8), Greedy(3, 8, 5, TIE / 2)])["greedy ids"]
    assert not outcome(manifest, [row()], [Greedy(3, 8, 8), Greedy(3, 8, 5, TIE * 2)])["greedy ids"]


def test_positions_beyond_the_bound_need_an_excuse(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    excused, worse = Far(0, 1, 4e-3, 4e-3 / ROUNDING), Far(0, 2, 4.1e-3, 4e-3 / ROUNDING)
    assert outcome(manifest, [row()], [])["logits"]
    assert outcome(manifest, [row()], [], far=[excused])["logits"]
    assert not outcome(manifest, [row()], [], far=[excused, worse])["logits"]
    assert not outcome(manifest, [row()], [], far=[Far(0, 1, 4e-3)])["logits"]
    assert not outcome(manifest, [row()], [], far=[Far(0, 1, float("inf"), 1.0)])["logits"]


def test_positions_beyond_the_bound_are_found_and_judged_until_one_has_no_excuse() -> None:
    reference = [np.zeros((3, 4), np.float32), np.zeros((1, 4), np.float32)]
    ours = [reference[0].copy(), reference[1].copy()]
    ours[0][1, 2], ours[0][2, 0], ours[1][0, 3] = 8, 4, -2
    seen = Observed([[1, 2, 3], [4]], ours)
    seen.changed["t1", "decode", 0, 0] = np.array([0, 6, 0, 0], np.float32)
    far = beyond(seen, reference, 1.0)
    assert [(f.sequence, f.position, f.distance) for f in far] == [(0, 1, 8), (0, 0, 6), (0, 2, 4), (1, 0, 2)]
    asked: list[list[int]] = []

    def precise(ids: list[int]) -> np.ndarray:
        asked.append(ids)
        return np.full((len(ids), 4), 0.7 if len(ids) == 1 else 1.0, np.float32)

    judged = judge(far, seen, reference, precise)
    assert [f.rounding for f in judged] == pytest.approx([1.0, 1.0, 1.0, 0.7])
    assert all(f.excused for f in judged)
    assert asked == [[1, 2, 3], [4]]
    ours[0][1, 2] = 8.1
    judged = judge(beyond(seen, reference, 1.0), seen, reference, precise)
    assert [f.rounding for f in judged] == [1.0, None, None, None]
    assert not judged[0].excused


def test_eager_in_float64_rounds_less(tiny_model: Path) -> None:
    from inferir.frontend.capture.eager import eager_model, model_logits
    from inferir.frontend.source.model_source import load_source

    source = load_source(str(tiny_model))
    model = eager_model(source)
    single = model_logits(model, [256, 1, 2, 3])
    double = double_logits(model, [256, 1, 2, 3])
    assert 0 < np.abs(double - single.numpy()).max() < 1e-4


def test_the_bound_of_bf16_is_eagers_own(tiny_artifact_bf16: Path) -> None:
    def passes(kl: list[float], eager_kl: list[float]) -> bool:
        return outcome(read_manifest(tiny_artifact_bf16), [row()], [], kl=kl, eager_kl=eager_kl)["KL"]

    assert passes([1e-3, KL_MARGIN * 1.99e-3 - 1e-3], [1e-3, 1e-3])
    assert not passes([1e-3, KL_MARGIN * 2.01e-3 - 1e-3], [1e-3, 1e-3])
    assert not passes([float("nan"), 1e-3], [1e-3, 1e-3])
    assert not passes([float("inf"), 1e-3], [1e-3, 1e-3])


def test_a_position_where_eager_goes_astray_neither_helps_nor_hurts(tiny_artifact_bf16: Path) -> None:
    manifest = read_manifest(tiny_artifact_bf16)
    eager = [1e-3] * 5 + [STRAY * 1.01e-3]
    assert outcome(manifest, [row()], [], kl=[1e-3] * 5 + [9.0], eager_kl=eager)["KL"]
    assert not outcome(manifest, [row()], [], kl=[2e-3] * 5 + [0.0], eager_kl=eager)["KL"]
    assert not outcome(manifest, [row()], [], kl=[1e-3] * 5 + [9.0], eager_kl=[1e-3] * 5 + [STRAY * 0.99e-3])["KL"]


def test_coverage(tiny_artifact: Path) -> None:
    measured = Measured([row()], np.zeros(1))
    checks = check_all(measured, [], Observed([], []), read_manifest(tiny_artifact), 1.0, [])
    assert next(c for c in checks if c.name == "coverage").detail == "not run: t2-8, t9-64"


def test_other_bits_in_another_step_fail(tiny_artifact: Path) -> None:
    logits = np.arange(12, dtype=np.float32).reshape(3, 4)
    seen = Observed([[1, 2, 3]], [logits.copy()], [Part("t1", "decode", 0, 0, 3), Part("t2-8", "prompt", 0, 0, 3)])
    assert outcome(read_manifest(tiny_artifact), measure(seen, [logits], None).rows, [], seen)["batch invariance"]
    seen.changed["t2-8", "prompt", 0, 1] = logits[1] + np.float32(0.5)
    rows = {r.bucket: r for r in measure(seen, [logits], None).rows}
    assert (rows["t1"].max_abs, rows["t2-8"].max_abs) == (0.0, 0.5)
    assert rows["t2-8"].mean_abs == pytest.approx(0.5 / 3)
    assert not outcome(read_manifest(tiny_artifact), list(rows.values()), [], seen)["batch invariance"]
