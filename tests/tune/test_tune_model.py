"""`inferir tune` and `inferir compile --tuning`: what is recorded, going on after an interruption, what is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferir.api.llm import LLM
from inferir.codegen.tunables import Race
from inferir.compile.compiler import CompileOptions
from inferir.compile.tuning_records import read_records
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.contract.target import Target
from inferir.ir.errors import InferirError, TargetError
from inferir.tune import tune_model as tune
from inferir.tune.race import RaceResult, Samples
from inferir.tune.tune_model import TuneOptions, TuneReport, tune_model

LIMITS = {"max_num_batched_tokens": 4, "max_num_seqs": 2, "max_model_len": 32, "buckets": "1,2-4"}
FLAGS = [x for name, value in LIMITS.items() for x in (f"--{name.replace('_', '-')}", str(value))]
SLOW, FAST = Samples((3.0,) * 5), Samples((2.0,) * 5)


class Judge:
    """Says that the last candidate of a race wins, or the default; stops after `most` races as Ctrl-C does."""

    def __init__(self, *, tuned: bool = True, most: int = 10**6) -> None:
        self.races: list[Race] = []
        self._tuned, self._most = tuned, most

    def __call__(self, race: Race, library: bytes) -> RaceResult:
        assert library.startswith(b"\x7fELF")
        if len(self.races) == self._most:
            raise KeyboardInterrupt
        self.races.append(race)
        return RaceResult(len(race.choices) - 1, SLOW, FAST) if self._tuned else RaceResult(0, SLOW, SLOW)


Run = Callable[..., TuneReport]


def tuned_with(judge: Judge, model: Path, file: Path, how: TuneOptions) -> TuneReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune._Runner, "measure", lambda runner, race, library: judge(race, library))
        return tune_model(str(model), file, CompileOptions(**LIMITS), how)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "records.json"


@pytest.fixture
def run(tiny_model: Path, file: Path) -> Run:
    def go(judge: Judge, **how: Any) -> TuneReport:
        options = TuneOptions(**{"jobs": 1, **how})
        return tuned_with(judge, tiny_model, file, options)

    return go


@pytest.fixture(scope="module")
def records(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records that give every product of the tiny model another tile than the default."""
    path = tmp_path_factory.mktemp("records") / "records.json"
    tuned_with(Judge(), tiny_model, path, TuneOptions(jobs=1))
    return path


def test_every_product_is_recorded(run: Run, file: Path) -> None:
    judge = Judge()
    report = run(judge, threads=3, rounds=7)
    records = read_records(file)
    assert list(records) == report.measured
    assert (report.known, report.left, len(records)) == ([], 0, len(judge.races))
    assert {r.key.most for r in records} == {2, 4}  # 2: rows of logits; for a single row there is but one tile
    for record, race in zip(records, judge.races, strict=True):
        assert (record.key.k, record.key.n, record.key.lo) == (race.product.k, race.product.n, race.product.lo)
        assert (record.key.threads, record.rounds, record.key.target) == (3, 7, Target.host())
        assert record.default != record.tile
        assert (record.default_seconds, record.seconds, record.spread) == (3.0, 2.0, 0.0)
        assert record.candidates == len(race.choices) > 1


def test_the_report(cli: Callable[..., Any], tiny_model: Path, records: Path, file: Path) -> None:
    document = json.loads(records.read_text())
    document["records"][0]["spread"] = 1.0
    document["records"][1]["tile"] = None
    file.write_text(json.dumps(document))
    count = len(document["records"])
    out = " ".join(cli("tune", tiny_model, "-o", file, *FLAGS).out.split())
    assert f"{file}: {count} products, {count - 1} with another tile than the default; 0 measured now" in out
    assert "The times of 1 spread by more than a fifth" in out
    assert out.count("default held") == 1
    assert f"Use it: inferir compile {tiny_model} -o ART --tuning {file}" in out


def test_a_default_that_holds_is_recorded_as_such(run: Run, file: Path) -> None:
    run(Judge(tuned=False))
    assert all(r.tile is None and r.seconds == r.default_seconds for r in read_records(file))


def test_an_interrupted_run_is_gone_on_with(run: Run, file: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Judge(most=2))
    before = read_records(file)
    assert len(before) == 2
    rest = Judge(tuned=False)
    report = run(rest)
    assert report.known == list(before)
    after = read_records(file)
    assert after[:2] == before
    assert len(after) == 2 + len(rest.races)
    assert run(Judge(most=0)).measured == []  # nothing is left


def test_again_measures_what_is_recorded(run: Run, file: Path) -> None:
    run(Judge())
    report = run(Judge(tuned=False), again=True)
    assert report.known == []
    assert all(r.tile is None for r in read_records(file))


def test_other_threads_and_limits_have_records_of_their_own(run: Run, file: Path) -> None:
    one = run(Judge(), threads=1)
    two = run(Judge(), threads=2)
    assert two.known == []
    assert len(read_records(file)) == len(one.measured) + len(two.measured)


def test_no_product_is_begun_when_the_time_is_up(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: Iterator[float] = iter([0.0, *[50.0] * 4, *[61.0] * 10])
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    report = run(Judge(), minutes=1)
    assert len(report.measured) == 2  # a look at the clock before every build and every race
    assert report.left > 0
    assert list(read_records(file)) == report.measured


@pytest.mark.parametrize(
    ("how", "words"),
    [({"rounds": 4}, "rounds is 4"), ({"minutes": 0}, "minutes is 0"), ({"threads": 0}, "threads is 0")],
)
def test_senseless_options(run: Run, file: Path, how: dict[str, Any], words: str) -> None:
    with pytest.raises(InferirError, match=words):
        run(Judge(), **how)
    assert not file.exists()


def test_a_target_that_this_machine_lacks(tiny_model: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "host_features", lambda: frozenset({"avx2"}))
    with pytest.raises(TargetError, match=r"x86-64-v4 cannot be measured: this machine lacks .*avx512f"):
        tune_model(str(tiny_model), file, CompileOptions(target="x86-64-v4"))


def test_places_that_cannot_be_written(tiny_model: Path, tmp_path: Path, fails: Callable[..., str]) -> None:
    assert "no/r.json: cannot be written: there is no folder" in fails("tune", tiny_model, "-o", tmp_path / "no/r.json")
    (tmp_path / "other.json").write_text('{"format": 7}')
    line = fails("tune", tiny_model, "-o", tmp_path / "other.json")
    assert f"{tmp_path / 'other.json'}: format 7, this version of Inferir reads format 1" in line
    assert (tmp_path / "other.json").read_text() == '{"format": 7}'


def test_the_command_measures_on_this_machine(cli: Callable[..., Any], tiny_model: Path, file: Path) -> None:
    options = (tiny_model, "-o", file, *FLAGS, "--buckets", "1-4", "--rounds", "5", "--threads", "2", "--jobs", "1")
    first = cli("tune", *options, "--json")
    assert (first.status, first.err) == (0, "")
    report = first.json
    assert (report["threads"], report["left"], report["known"]) == (2, 0, [])
    assert len(report["measured"]) == len(read_records(file)) > 3
    assert all(r["default_seconds"] > 0 and r["seconds"] > 0 for r in report["measured"])
    again = cli("tune", *options)
    assert (again.status, again.err) == (0, "")
    assert "0 measured now" in again.out
    assert "64 to 128 f32" in again.out


def test_ctrl_c(cli: Callable[..., Any], tiny_model: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("inferir.tune.kernel_host.KernelHost.measure", interrupted)
    result = cli("tune", tiny_model, "-o", file, *FLAGS, "--jobs", "1")
    assert (result.status, result.out, result.err) == (130, "", "")
    assert read_records(file) == ()


@pytest.fixture
def compiled(cli: Callable[..., Any], tiny_model: Path, tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """Compile the tiny model with further flags; the artifact and the report."""

    def go(name: str, *flags: object) -> tuple[Path, Any]:
        art = tmp_path / name
        result = cli("compile", tiny_model, "-o", art, *FLAGS, "--jobs", "1", *flags, "--json")
        assert (result.status, result.err) == (0, "")
        return art, result.json

    return go


def tiles(art: Path) -> dict[tuple[str, str], dict[str, int]]:
    """Tiles of matrix products by bucket and kernel."""
    return {(b.name, k.name): k.tile for b in read_manifest(art).buckets for k in b.kernels if k.anchor == "matmul"}


def test_a_compile_with_records(compiled: Callable[..., Any], records: Path, cli: Callable[..., Any]) -> None:
    plain, report = compiled("plain")
    assert report["tuning"] is None
    tuned, report = compiled("tuned", "--tuning", records)
    count = len(read_records(records))
    assert report["tuning"] == {"records": str(records), "tuned": count, "held": 0, "ignored": {}}
    libraries = report["cache"]["kinds"]["bucket"]
    assert (libraries["hits"], libraries["misses"]) == (1, 1)
    assert "tiles" in libraries["reason"]
    expected = {(t["rows"], t["panel"], t["blocks"]) for t in (r.tile for r in read_records(records)) if t is not None}
    found = {(t["rows"], t["panel"], t["blocks"]) for (bucket, _), t in tiles(tuned).items() if bucket == "t2-4"}
    assert found == expected
    assert all(("tuned" in t) == (bucket == "t2-4") for (bucket, _), t in tiles(tuned).items())
    assert not any("tuned" in t for t in tiles(plain).values())
    shown = " ".join(cli("inspect", tuned).out.split())
    assert ", tuned" in shown
    assert ", tuned" not in cli("inspect", plain).out
    prompts = [[1, 2, 3, 4, 5, 6, 7], [9]]
    for chunk in (1, None):
        got = []
        for art in (plain, tuned):
            with LLM(art, threads=2) as llm:
                got.append(llm.logits(prompts, chunk=chunk))
        for a, b in zip(*got, strict=True):
            np.testing.assert_array_equal(a, b)


def test_records_of_another_target_change_nothing(
    compiled: Callable[..., Any], records: Path, tmp_path: Path, cli: Callable[..., Any], tiny_model: Path
) -> None:
    document = json.loads(records.read_text())
    for record in document["records"]:
        record["key"]["target"]["name"] = "pdp11"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    plain, _ = compiled("plain")
    same, report = compiled("same", "--tuning", other)
    assert report["tuning"]["ignored"] == {"for another target": len(document["records"])}
    assert report["cache"]["kinds"]["bucket"]["misses"] == 0
    assert read_manifest(same).digest == read_manifest(plain).digest
    out = " ".join(cli("compile", tiny_model, "-o", same, *FLAGS, "--tuning", other).out.split())
    count = len(document["records"])
    assert f"Tuning: 0 tiles of {other} used; {count} records ignored: {count} for another target." in out


@pytest.mark.parametrize(
    ("content", "words"), [(None, "not found"), ("{", "not a file of"), ('{"format": 2}', "format 2")]
)
def test_bad_records_are_refused_at_once(
    fails: Callable[..., str], tmp_path: Path, file: Path, content: str | None, words: str
) -> None:
    if content is not None:
        file.write_text(content)
    line = fails("compile", tmp_path / "no-model", "-o", tmp_path / "art", "--tuning", file)
    assert f"error: {file}: {words}" in line
    assert not (tmp_path / "art").exists()
