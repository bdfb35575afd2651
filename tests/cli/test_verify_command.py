"""`inferir verify` with thresholds, a baseline and speed: files in, files out, exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def baseline_file(tiny_artifact_bf16: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The baseline of a quick run without speed, not to be changed."""
    from typer.testing import CliRunner

    from inferir.cli.main import app

    file = tmp_path_factory.mktemp("baseline") / "b.json"
    art, model = str(tiny_artifact_bf16), str(tiny_model)
    done = CliRunner().invoke(app, ["verify", art, "--model", model, "--quick", "--write-baseline", str(file)])
    assert done.exit_code == 0, done.output
    return file


def edited(file: Path, place: Path, **changes: object) -> Path:
    place.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return place


def test_thresholds_and_a_page(cli: Callable[..., Any], tiny_artifact: Path, tiny_model: Path, tmp_path: Path) -> None:
    bounds = tmp_path / "bounds.toml"
    bounds.write_text("max_abs_rms = 1e-9\ntop1 = 0.5\n")
    page = tmp_path / "page.html"
    result = cli(
        "verify", tiny_artifact, "--model", tiny_model, "--quick", "--json", "--thresholds", bounds, "--html", page
    )
    checks = {c["name"]: c for c in result.json["checks"]}
    assert (result.status, checks["logits"]["passed"], checks["top-1"]["passed"]) == (1, False, True)
    assert checks["logits"]["source"] == checks["top-1"]["source"] == str(bounds)
    assert checks["coverage"]["source"] == ""
    assert result.json["speed"] is None
    text = page.read_text()
    assert "FAILED" in text
    assert text.count("<polyline") == 2
    assert str(bounds) in text


def test_a_run_that_falls_behind_its_baseline_fails(
    cli: Callable[..., Any], tiny_artifact_bf16: Path, tiny_model: Path, baseline_file: Path, tmp_path: Path
) -> None:
    """Kernels and eager are those of the baseline: a figure moves only because the file was edited."""
    measured = json.loads(baseline_file.read_text())
    better = edited(
        baseline_file, tmp_path / "b.json", kl=measured["kl"] / 1.5, decode_speed=1e9, prefill_speed=1e-9, threads=1
    )
    written = tmp_path / "new.json"
    arguments = ("--model", tiny_model, "--quick", "--json", "--baseline", better, "--write-baseline", written)
    result = cli("verify", tiny_artifact_bf16, *arguments)
    checks = {c["name"].removesuffix(" against baseline"): c for c in result.json["checks"] if c["source"]}
    assert {name: c["passed"] for name, c in checks.items()} == {
        "KL": False,
        "top-1": True,
        "decode speed": False,
        "prefill speed": True,
    }
    assert "(+50.0%)" in checks["KL"]["detail"]
    assert "(-100.0%), at least 750000000.00" in checks["decode speed"]["detail"]
    assert result.status == 1
    assert result.json["speed"]["decode"]["artifact"]
    assert not written.exists()
    assert f"{written} is not written: a run that fails is no baseline" in result.err


def test_a_run_like_its_baseline_passes_and_writes_the_next(
    cli: Callable[..., Any], tiny_artifact_bf16: Path, tiny_model: Path, baseline_file: Path, tmp_path: Path
) -> None:
    fast = edited(baseline_file, tmp_path / "b.json", decode_speed=1e9)
    arguments = ("--model", tiny_model, "--quick", "--no-speed", "--baseline", fast, "--write-baseline", tmp_path / "n")
    result = cli("verify", tiny_artifact_bf16, *arguments)
    assert result.status == 0, result.out
    assert "KL against baseline" in result.out
    assert "Speed" not in result.out
    assert json.loads((tmp_path / "n").read_text()) == json.loads(baseline_file.read_text())


def test_files_that_do_not_fit_are_refused_before_anything_runs(
    fails: Callable[..., str], tiny_artifact: Path, tiny_model: Path, baseline_file: Path, tmp_path: Path
) -> None:
    run = ("verify", tiny_artifact, "--model", tiny_model, "--quick")
    assert "its element type is bf16, that of this run f32" in fails(*run, "--baseline", baseline_file)
    assert "--baseline none.json: No such file" in fails(*run, "--baseline", "none.json")
    assert "--thresholds none.toml: No such file" in fails(*run, "--thresholds", "none.toml")
    page = tmp_path / "missing" / "page.html"
    assert f"--html {page}: there is no folder {page.parent}" in fails(*run, "--html", page)
