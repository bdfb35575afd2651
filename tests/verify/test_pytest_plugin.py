"""`pytest --inferir-verify`: tests for checks and buckets, in a pytest of their own that has the plug-in installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artifacts import damaged

from inferir.ir.contract.artifact import read_manifest
from inferir.ir.graph.dtypes import DType
from inferir.verify.baseline import Figures, load_baseline
from inferir.verify.check_names import check_names
from inferir.verify.thresholds import Thresholds, load_thresholds
from inferir.verify.verify_process import Run, verify_in_process

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = dict.fromkeys(("max_abs", "mean_abs", "kl"), 0.5)
CHECK = {"passed": True, "detail": "fine", "measured": 1.0, "bound": 2.0, "source": "", "buckets": []}
ROW = {"bucket": "t1", "kind": "decode", "positions": 3, "top1": 1.0, "eager_kl": None, **NUMBERS}


@pytest.fixture
def outside(tmp_path: Path, pytestconfig: pytest.Config) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run pytest in the folder tmp_path/work, with the plug-in by its entry point and a log of what Python starts."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    site, work = tmp_path / "site", tmp_path / "work"
    info = site / "inferir_tests-1.dist-info"
    info.mkdir(parents=True)
    work.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inferir_tests\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(f"{n} = {m}\n" for n, m in entry.items()))
    log = f"open({str(tmp_path / 'log')!r}, 'a').write('verify\\n')"
    (site / "sitecustomize.py").write_text(f"import sys\nif 'verify' in sys.orig_argv: {log}\n")
    path = os.pathsep.join([str(site), str(ROOT / "src")])

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PYTHONPATH": path}
        return subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


def summary(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a run: how many tests did what."""
    return done.stdout.strip().splitlines()[-1].strip("= ").partition(" in ")[0]


def test_it_costs_nothing_where_it_is_not_asked_for(outside: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "work" / "test_mine.py").write_text(
        "import sys\n"
        "def test_mine(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('inferir')\n"
        "    found = {m for m in sys.modules if m.startswith('inferir')}\n"
        "    assert found == {'inferir', 'inferir.verify', 'inferir.verify.pytest_plugin'}\n"
        "    assert not {'torch', 'numpy', 'msgspec', 'jinja2', 'rich'} & set(sys.modules)\n"
    )
    done = outside("-p", "no:hypothesispytest", "-p", "no:anyio")
    assert (done.returncode, summary(done)) == (0, "1 passed"), done.stdout


def test_checks_and_buckets_beside_a_users_own_tests_in_parallel(
    outside: Callable[..., Any], tiny_artifact_bf16: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Both processes get some of the tests, and the artifact is verified once."""
    work = tmp_path / "work"
    (work / "test_mine.py").write_text("def test_mine(): pass\n")
    bounds = work / "bounds.toml"
    bounds.write_text("top1 = 0.5\n")
    report = work / "verify.xml"
    options = ("--inferir-model", tiny_model, "--inferir-quick", "--inferir-thresholds", "bounds.toml")
    parallel = ("-n", "2", "--dist", "load", "--junitxml", report, "--inferir-html", "verify.html")
    done = outside("--inferir-verify", tiny_artifact_bf16, *options, *parallel)
    assert (done.returncode, summary(done)) == (0, "9 passed"), done.stdout
    assert (tmp_path / "log").read_text() == "verify\n"
    assert "<polyline" in (work / "verify.html").read_text()
    cases = {c.attrib["name"]: c for c in ET.parse(report).getroot().iter("testcase")}
    checks = ["KL", "batch invariance", "coverage", "top-1"]
    assert sorted(cases) == sorted([*checks, "bucket t1", "bucket t2-8", "bucket t9-64", "other checks", "test_mine"])
    properties = {
        name: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for name, case in cases.items()
    }
    assert 0 < float(properties["KL"]["measured"]) <= float(properties["KL"]["bound"])
    assert properties["top-1"]["bound"] == "0.5"
    assert properties["top-1"]["bound_from"] == "bounds.toml"
    assert float(properties["bucket t2-8"]["mixed.kl"]) > 0
    assert properties["other checks"]["dtype"] == "bf16"


def test_a_broken_artifact_fails_in_a_folder_without_tests(
    outside: Callable[..., Any], tiny_artifact: Path, tiny_model: Path, tmp_path: Path
) -> None:
    damaged(tiny_artifact, tmp_path / "work" / "bad", "model.layers.1.mlp.down_proj.weight.panels", 1.01)
    done = outside("--inferir-verify", "bad", "--inferir-model", tiny_model, "--inferir-quick", "-k", "logits or t2-8")
    assert (done.returncode, summary(done)) == (1, "2 failed, 6 deselected"), done.stdout
    assert "FAILED bad::logits - Failed: largest difference" in done.stdout
    assert "FAILED bad::bucket t2-8 - Failed: logits (" in done.stdout


def test_what_does_not_fit_is_one_line_before_anything_runs(
    outside: Callable[..., Any], tiny_artifact: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**figures(), "model": "other"}))
    for arguments, line in (
        (("missing",), f"{tmp_path / 'work' / 'missing'}/manifest.json: not found; is "),
        ((tiny_artifact, "--inferir-baseline", "none"), "--baseline none: No such file or directory"),
        ((tiny_artifact, "--inferir-baseline", other, "-n", "2"), f"--baseline {other}: its model is other, that of"),
        (
            (tiny_artifact, "--inferir-html", "a", "--inferir-html", "b"),
            "give --inferir-html as often as --inferir-verify, not 2 times",
        ),
    ):
        done = outside("--inferir-verify", *arguments)
        assert done.returncode == 4, done.stdout
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith(f"ERROR: {line}"), done.stderr
    assert not (tmp_path / "log").exists()


def figures() -> dict[str, Any]:
    here = Figures("tiny-llama", "f32", "t", False, 1, 1e-3, 1.0, 1.0, decode_speed=1.0, threads=1)
    return {f: getattr(here, f) for f in here.__dataclass_fields__}


def judged(outside: Callable[..., Any], artifact: Path, outcome: str, work: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of an artifact whose verification ends with `outcome`."""
    (work / "conftest.py").write_text(
        "from inferir.verify import verify_process\n"
        "from inferir.verify.verify_process import Outcome\n"
        f"verify_process.verify_in_process = lambda run: {outcome}\n"
    )
    done: subprocess.CompletedProcess[str] = outside("--inferir-verify", artifact)
    return done


def test_every_check_fails_some_test(outside: Callable[..., Any], tiny_artifact: Path, tmp_path: Path) -> None:
    checks = [{**CHECK, "name": n} for n in ("logits", "greedy ids", "batch invariance", "coverage", "of a plug-in")]
    report = {"checks": checks, "rows": [ROW], "figures": None, "environment": {}}
    work = tmp_path / "work"
    assert summary(judged(outside, tiny_artifact, f"Outcome({report!r})", work)) == "8 passed"
    checks[2].update(passed=False, detail="other bits", buckets=["t1"])
    checks[4].update(passed=False, detail="not so good")
    done = judged(outside, tiny_artifact, f"Outcome({report!r})", work)
    assert summary(done) == "3 failed, 5 passed"
    for line in (
        "::batch invariance - Failed: other bits",
        "::bucket t1 - Failed: batch invariance (decode steps: max |Δ| 5.00e-01, mean KL 5.00e-01)",
        "::other checks - Failed: of a plug-in: not so good",
    ):
        assert line.partition(" - Failed: ")[2] in done.stdout
        assert line.partition(" - ")[0] in done.stdout
    del checks[3]
    assert (
        "the verification did not make this check"
        in judged(outside, tiny_artifact, f"Outcome({report!r})", work).stdout
    )


def test_a_verification_that_cannot_run_fails_every_test(
    outside: Callable[..., Any], tiny_artifact: Path, tmp_path: Path
) -> None:
    done = judged(outside, tiny_artifact, "Outcome(None, 'inferir: error: no such model')", tmp_path / "work")
    assert (done.returncode, summary(done)) == (1, "8 failed")
    assert done.stdout.count("\ninferir: error: no such model\n") == 8


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (
            "print('warning', file=sys.stderr); sys.exit('inferir: error: no such model')",
            "inferir: error: no such model",
        ),
        ("os.kill(os.getpid(), 11)", "inferir verify was ended by SIGSEGV"),
        ("sys.exit(70)", "inferir verify ended with status 70"),
    ],
)
def test_how_a_process_can_end(program: str, error: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport os, sys\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    outcome = verify_in_process(Run(0, tmp_path))
    assert (outcome.report, outcome.error) == (None, error)


def test_options_become_those_of_the_command() -> None:
    run = Run(0, Path("/art"), "m", "t", "b", "w", "h", True, True)
    expected = "verify /art --json --model m --thresholds t --baseline b --write-baseline w --html h --quick --speed"
    assert run.arguments() == expected.split()
    assert Run(0, Path("/art"), speed=False).arguments() == ["verify", "/art", "--json", "--no-speed"]


def test_names_of_checks_are_told_before_they_are_made(
    cli: Callable[..., Any], tiny_artifact_bf16: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """With every threshold and a baseline, the report has the checks that were foretold, in that order."""
    bounds, file = tmp_path / "t.json", tmp_path / "b.json"
    keys = ("kl", "kl_ratio", "top1", "greedy_ids", "max_abs", "decode_speed", "prefill_speed")
    bounds.write_text(json.dumps(dict.fromkeys(keys, 1)))
    manifest = read_manifest(tiny_artifact_bf16)
    same = {"model": manifest.model.name, "dtype": "bf16", "target": manifest.target.name, "quick": True}
    file.write_text(json.dumps({**figures(), **same}))
    arguments = ("verify", tiny_artifact_bf16, "--model", tiny_model, "--quick", "--json", "--no-speed")
    report = cli(*arguments, "--thresholds", bounds, "--baseline", file).json
    thresholds, baseline = load_thresholds(bounds), load_baseline(file)
    assert [c["name"] for c in report["checks"]] == check_names(DType.BF16, thresholds, baseline, False)
    speeds = ["decode speed", "prefill speed", "decode speed against baseline"]
    names = check_names(DType.BF16, thresholds, baseline, None)
    assert [n for n in names if "speed" in n] == speeds
    assert check_names(DType.F32, Thresholds(max_abs=1.0), baseline, None) == [
        *("logits", "greedy ids", "batch invariance", "coverage"),
        *(f"{n} against baseline" for n in ("KL", "top-1", "decode speed")),
    ]
