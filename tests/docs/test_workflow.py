"""docs/ci/verify.yml: a workflow whose commands are real, run on a tiny model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from inferir.cli.main import app
from inferir.verify import pytest_plugin

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / "docs" / "ci" / "verify.yml").read_text(encoding="utf-8"))
STEPS = WORKFLOW["jobs"]["verify"]["steps"]
SMALL = "--max-num-batched-tokens 64 --max-num-seqs 8 --buckets 1,2-8,9-64 --jobs 1"  # as the tiny artifact
PLUGIN = "inferir.verify.pytest_plugin"


def commands() -> dict[str, str]:
    """Shell commands of the steps that call Inferir or pytest, by name."""
    found = {s["name"]: s["run"] for s in STEPS if "run" in s}
    return {n: run for n, run in found.items() if run.startswith(("inferir ", "pytest "))}


def shell(run: str, folder: Path, programs: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner does, with scripts in place of the programs."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    for name, line in programs.items():
        (place / name).write_text(f"#!/bin/bash\n{line}\n")
        (place / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), **variables}
    environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", run]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def words(run: str, folder: Path, **variables: str) -> list[str]:
    """What the step's program gets, with the workflow's own variables."""
    given = dict.fromkeys(("inferir", "pytest"), 'printf "%s\\n" "$@"')
    done = shell(run, folder, given, **{**WORKFLOW["env"], **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_compiles_and_verifies() -> None:
    assert list(commands()) == ["Compile", "Verify"]
    assert all(("uses" in step) != ("run" in step) for step in STEPS)
    assert set(WORKFLOW[True]) == {"push", "pull_request"}  # YAML 1.1 reads the key `on` as true


def test_the_command_line_knows_every_option(tmp_path: Path) -> None:
    given = words(commands()["Compile"], tmp_path)
    root: Any = typer.main.get_command(app)
    command = root.commands[given[0]]
    context = command.make_context(given[0], given[1:])
    assert (context.params["model"], context.params["target"]) == (WORKFLOW["env"]["MODEL"], WORKFLOW["env"]["TARGET"])


def test_a_baseline_is_used_if_one_was_restored(tmp_path: Path) -> None:
    assert "--inferir-baseline" not in words(commands()["Verify"], tmp_path, BASELINE="")
    given = words(commands()["Verify"], tmp_path, BASELINE="baseline.json")
    assert given[given.index("--inferir-baseline") + 1] == "baseline.json"


def test_its_files_are_those_that_other_steps_name() -> None:
    steps = {s.get("name"): s for s in STEPS}
    written = set(steps["Upload the reports"]["with"]["path"].split())
    assert written == {"verify.html", "verify.xml", "new-baseline.json"}
    assert all(name in commands()["Verify"] for name in written)
    assert steps["Make this the baseline"]["run"] == "mv new-baseline.json baseline.json"
    restored = steps["Restore the baseline of the main branch"]["with"]
    assert restored["path"] == steps["Keep the baseline"]["with"]["path"] == "baseline.json"
    assert steps["Keep the baseline"]["with"]["key"].startswith(restored["restore-keys"])


def test_its_commands_run(tiny_artifact: Path, tiny_model: Path, tmp_path: Path) -> None:
    """The compile finds the kernels of `tiny_artifact` in the cache of the test session."""
    assert tiny_artifact.is_dir()
    python = sys.executable
    programs = {
        "inferir": f'exec {python} -m inferir "$@"',
        "pytest": f'exec {python} -m pytest -p no:cacheprovider $PLUGIN "$@"',
    }
    loaded = any(e.name == "inferir" for e in _entry_points())
    plugin = "" if loaded else f"-p {PLUGIN}"
    variables = {"MODEL": str(tiny_model), "TARGET": "host", "OPTIONS": SMALL, "BASELINE": "", "PLUGIN": plugin}
    for run in commands().values():
        done = shell(run, tmp_path, programs, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    suite = ET.parse(tmp_path / "verify.xml").getroot()
    names = {case.attrib["name"] for case in suite.iter("testcase")}
    assert {"logits", "coverage", "bucket t9-64"} <= names
    assert "decode_speed" in (tmp_path / "new-baseline.json").read_text()
    assert "Speed" in (tmp_path / "verify.html").read_text()


def _entry_points() -> Any:
    from importlib.metadata import entry_points

    return entry_points(group="pytest11")


@pytest.mark.parametrize("step", [s for s in STEPS if "uses" in s], ids=lambda s: s["uses"])
def test_actions_have_a_version(step: dict[str, Any]) -> None:
    assert step["uses"].startswith("actions/")
    assert "@v" in step["uses"]


def test_the_page_names_every_option_of_the_plugin() -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    known: list[str] = []

    class Parser:
        def getgroup(self, *_: str) -> Any:
            return self

        def addoption(self, name: str, **_: Any) -> None:
            known.append(name)

    pytest_plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    assert set(re.findall(r"`(--inferir-[a-z-]+)", text)) == set(known)
