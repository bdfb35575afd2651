"""What `pytest --inferir-verify` collects. Each artifact is verified once, by whichever of its tests is first.

The verification is a process of its own, `inferir verify --json`: neither torch nor an engine is loaded into pytest,
and a kernel that crashes fails a test instead of ending the run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.contract.artifact import read_manifest
from inferir.ir.errors import InferirError
from inferir.ir.system import extras
from inferir.ir.system.error_report import one_line
from inferir.verify.baseline import load_baseline
from inferir.verify.check_names import check_names
from inferir.verify.speed import speed_threads
from inferir.verify.thresholds import Thresholds, load_thresholds
from inferir.verify.verify_process import Run, Runs

OTHERS = "other checks"
"""The test that fails for a check that has none of its own."""
_SPEED: dict[str, bool | None] = {"auto": None, "yes": True, "no": False}


class ArtifactTests:
    """The plug-in's hooks for one run of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        worker = getattr(config, "workerinput", None)
        self._own = worker is None
        self._folder = Path(tempfile.mkdtemp(prefix="inferir-verify-") if worker is None else worker["inferir_verify"])
        self._runs = Runs(self._folder)
        try:
            self._planned = [(run, *_planned_tests(run)) for run in _runs(config)]
        except InferirError as error:
            self.pytest_unconfigure()
            raise pytest.UsageError(one_line(str(error))) from None

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Artifacts follow the files and folders that the session finds, so -k, -m and --deselect see all tests."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            root = collector.config.rootpath
            for run, checks, buckets in self._planned:
                place = _node_id(run.artifact, root)
                node = ArtifactNode.from_parent(collector, name=place, path=run.artifact, nodeid=place)
                node.plan(run, self._runs, checks, buckets)
                report.result.append(node)
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Processes of pytest-xdist share the outcomes, whichever of them a test runs in."""
        node.workerinput["inferir_verify"] = str(self._folder)

    def pytest_unconfigure(self) -> None:
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)


class ArtifactNode(pytest.Collector):
    """The artifact that its tests stand below."""

    def plan(self, run: Run, runs: Runs, checks: Sequence[str], buckets: Sequence[str]) -> None:
        """Say which tests there will be: one for each of `checks` and `buckets`, and one for all other checks."""
        self._run, self._runs, self._checks, self._buckets = run, runs, checks, buckets

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        kinds: list[tuple[Any, str]] = [(CheckItem, name) for name in self._checks]
        kinds += [(BucketItem, f"bucket {name}") for name in self._buckets]
        found: list[pytest.Item | pytest.Collector] = []
        for kind, name in [*kinds, (OtherChecksItem, OTHERS)]:
            test = kind.from_parent(self, name=name, run=self._run, runs=self._runs, own_checks=self._checks)
            test.add_marker("inferir_verify")
            if self.config.pluginmanager.hasplugin("xdist"):
                test.add_marker(pytest.mark.xdist_group(f"inferir {self.name}"))
            found.append(test)
        return found


class ArtifactItem(pytest.Item):
    """A test that looks at the outcome of a verification. own_checks: the checks that have a test of their own."""

    def __init__(self, *, run: Run, runs: Runs, own_checks: Sequence[str], **more: Any) -> None:
        super().__init__(**more)
        self._run, self._runs, self.own_checks = run, runs, own_checks

    def runtest(self) -> None:
        outcome = self._runs.outcome(self._run)
        if outcome.report is None:
            pytest.fail(outcome.error, pytrace=False)
        problem = self.judge(outcome.report)
        if problem:
            pytest.fail(problem, pytrace=False)

    def judge(self, report: dict[str, Any]) -> str:
        """What is wrong, "" if nothing is; adds properties for a JUnit report."""
        raise NotImplementedError

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid

    def note(self, **values: object) -> None:
        """Properties of the test in a JUnit report; those without a value are left out."""
        self.user_properties += [(k, v) for k, v in values.items() if v not in (None, "", [])]


class CheckItem(ArtifactItem):
    """A check of the whole artifact, of the same name."""

    def judge(self, report: dict[str, Any]) -> str:
        check = next((c for c in report["checks"] if c["name"] == self.name), None)
        if check is None:
            return "the verification did not make this check"
        self.note(measured=check["measured"], bound=check["bound"], bound_from=check["source"], detail=check["detail"])
        return "" if check["passed"] else str(check["detail"])


class BucketItem(ArtifactItem):
    """A bucket, which fails with the checks that do not hold in it."""

    def judge(self, report: dict[str, Any]) -> str:
        bucket = self.name.removeprefix("bucket ")
        rows = [row for row in report["rows"] if row["bucket"] == bucket]
        for row in rows:
            numbers = ("positions", "max_abs", "mean_abs", "kl", "eager_kl", "top1")
            self.note(**{f"{row['kind']}.{key}": row[key] for key in numbers})
        broken = [c["name"] for c in report["checks"] if not c["passed"] and bucket in c["buckets"]]
        told = "; ".join(f"{row['kind']} steps: max |Δ| {row['max_abs']:.2e}, mean KL {row['kl']:.2e}" for row in rows)
        return f"{', '.join(broken)} ({told or 'no steps'})" if broken else ""


class OtherChecksItem(ArtifactItem):
    """All checks that have no test of their own, and the figures and environment of the run."""

    def judge(self, report: dict[str, Any]) -> str:
        self.note(**(report["figures"] or {}))
        self.note(**report["environment"])
        broken = [c for c in report["checks"] if not c["passed"] and c["name"] not in self.own_checks]
        return "; ".join(f"{c['name']}: {c['detail']}" for c in broken)


def _runs(config: pytest.Config) -> list[Run]:
    """What the options ask for. Raises `InferirError` if they do not fit together."""
    if (reason := extras.lacks("compile")) is not None:
        raise InferirError(f"--inferir-verify needs {reason}")
    artifacts = config.getoption("--inferir-verify")

    def each(name: str, shared: bool = True) -> list[str | None]:
        given: list[str | None] = config.getoption(f"--inferir-{name}")
        if not given:
            return [None] * len(artifacts)
        if shared and len(given) == 1:
            return given * len(artifacts)
        if len(given) != len(artifacts):
            often = "once or as often as" if shared else "as often as"
            raise InferirError(f"give --inferir-{name} {often} --inferir-verify, not {len(given)} times")
        return given

    options = zip(
        artifacts,
        each("model"),
        each("thresholds"),
        each("baseline"),
        each("write-baseline", False),
        each("html", False),
        strict=True,
    )
    return [
        Run(
            number=number,
            artifact=Path(artifact).absolute(),
            model=model,
            thresholds=thresholds,
            baseline=baseline,
            write_baseline=written,
            html=html,
            quick=config.getoption("--inferir-quick"),
            speed=_SPEED[config.getoption("--inferir-speed")],
        )
        for number, (artifact, model, thresholds, baseline, written, html) in enumerate(options)
    ]


def _planned_tests(run: Run) -> tuple[list[str], list[str]]:
    """Names of the checks and of the buckets. Raises an `InferirError` for a file that is missing or does not fit."""
    manifest = read_manifest(run.artifact)
    thresholds = Thresholds() if run.thresholds is None else load_thresholds(run.thresholds)
    thresholds.check_type(manifest.model.dtype)
    baseline = None if run.baseline is None else load_baseline(run.baseline)
    if baseline is not None:
        baseline.check_same(manifest, run.quick, None if run.speed is False else speed_threads(None))
    names = check_names(manifest.model.dtype, thresholds, baseline, run.speed)
    return names, [bucket.name for bucket in manifest.buckets]


def _node_id(artifact: Path, root: Path) -> str:
    """The artifact's path from pytest's root folder where it lies below that."""
    inside = artifact.is_relative_to(root) and artifact != root
    return (artifact.relative_to(root) if inside else artifact).as_posix()
