"""A baseline: figures of an earlier run that a later one may not fall behind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.contract.artifact import read_manifest
from inferir.ir.errors import InferirError
from inferir.verify.baseline import Baseline, Figures, baseline_checks, load_baseline, write_figures
from inferir.verify.thresholds import Tolerance

HERE = Figures("m", "bf16", "x86-64-v3", True, 100, 2e-3, 0.97, 0.5, 3e-3, 4.0, 2.0, 1)


def outcome(**was: Any) -> dict[str, tuple[bool, str]]:
    checks = baseline_checks(HERE, Baseline(dataclasses.replace(HERE, **was), "b.json"), Tolerance())
    assert all(c.source == "b.json" for c in checks)
    return {c.name: (c.passed, c.detail) for c in checks}


def test_it_reads_what_was_written_and_a_report_of_json(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    write_figures(HERE, file)
    assert load_baseline(file) == Baseline(HERE, str(file))
    file.write_text(json.dumps({"passed": True, "figures": dataclasses.asdict(HERE)}))
    assert load_baseline(file).figures == HERE
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]


def test_a_run_like_its_baseline_passes() -> None:
    assert {name: passed for name, (passed, _) in outcome().items()} == {
        "KL against baseline": True,
        "top-1 against baseline": True,
        "decode speed against baseline": True,
        "prefill speed against baseline": True,
    }


def test_a_run_that_falls_behind_says_by_how_much() -> None:
    assert outcome(kl=2e-3 / 1.049)["KL against baseline"][0]
    passed, detail = outcome(kl=1.6e-3)["KL against baseline"]
    assert (passed, "baseline 1.600e-03 (+25.0%), at most 1.680e-03" in detail) == (False, True)
    assert outcome(top1=0.9749)["top-1 against baseline"][0]
    passed, detail = outcome(top1=0.98)["top-1 against baseline"]
    assert (passed, "baseline 98.00% (-1.00 points)" in detail) == (False, True)
    assert outcome(decode_speed=5.3)["decode speed against baseline"][0]
    passed, detail = outcome(decode_speed=6.25)["decode speed against baseline"]
    assert (passed, "baseline 6.25 (-36.0%), at least 4.69" in detail) == (False, True)
    assert not outcome(prefill_speed=2.7)["prefill speed against baseline"][0]


def test_noise_below_the_floor_is_no_regression() -> None:
    tiny = dataclasses.replace(HERE, kl=9e-7)
    checks = baseline_checks(tiny, Baseline(dataclasses.replace(HERE, kl=1e-12), "b"), Tolerance())
    assert checks[0].passed
    checks = baseline_checks(tiny, Baseline(dataclasses.replace(HERE, kl=1e-12), "b"), Tolerance(kl_floor=1e-7))
    assert not checks[0].passed
    broken = dataclasses.replace(HERE, kl=float("nan"))
    assert not baseline_checks(broken, Baseline(HERE, "b"), Tolerance())[0].passed


def test_speed_is_compared_only_where_both_have_it() -> None:
    assert len(outcome(decode_speed=None, prefill_speed=None)) == 2
    assert not Baseline(dataclasses.replace(HERE, decode_speed=None, prefill_speed=None), "b").has_speed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "its model is other, that of this run"),
        ({"dtype": "bf16"}, "its element type is bf16, that of this run f32"),
        ({"target": "x86-64-v9"}, "its target is x86-64-v9, that of this run"),
        ({"quick": False}, "its length is full, that of this run quick"),
        ({"threads": 2}, "its number of threads for speed is 2, that of this run 1"),
    ],
)
def test_a_baseline_of_something_else_is_refused(change: dict[str, Any], message: str, tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    same = dataclasses.replace(HERE, model=manifest.model.name, dtype="f32", target=manifest.target.name)
    Baseline(same, "b.json").check_same(manifest, True, 1)
    Baseline(dataclasses.replace(same, threads=2), "b.json").check_same(manifest, True, None)
    without = dataclasses.replace(same, decode_speed=None, prefill_speed=None, threads=None)
    Baseline(without, "b.json").check_same(manifest, True, 1)
    with pytest.raises(InferirError) as caught:
        Baseline(dataclasses.replace(same, **change), "b.json").check_same(manifest, True, 1)
    assert str(caught.value).startswith(f"--baseline b.json: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "neither a baseline nor a report"),
        ('{"figures": null}', "neither a baseline nor a report"),
        ('{"passed": true, "rows": []}', "neither a baseline nor a report"),
        ({"format": 2}, "format 2, this version reads 1"),
        ({"speed": 1}, "unknown key speed"),
        ({"kl": "small"}, 'kl is "small", which is no value of it'),
        ({"kl": True}, "kl is true, which is no value of it"),
        ({"kl": float("nan")}, "kl is NaN, which is no value of it"),
        ({"quick": 1}, "quick is 1, which is no value of it"),
        ({"top1": ...}, "lacks top1"),
    ],
)
def test_a_file_that_is_no_baseline(text: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    if isinstance(text, dict):
        text = json.dumps({k: v for k, v in {**dataclasses.asdict(HERE), **text}.items() if v is not ...})
    file.write_text(text)
    with pytest.raises(InferirError) as caught:
        load_baseline(file)
    assert str(caught.value).startswith(f"--baseline {file}: {message}")
