"""`inferir tune MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from inferir.cli import arguments as a
from inferir.cli.console import plain, print_json, show, table
from inferir.cli.shared_options import Fields, compile_fields, expanded
from inferir.ir.system import extras
from inferir.ir.system.quantities import count, seconds

if TYPE_CHECKING:
    from inferir.compile.tuning_records import TuningRecord
    from inferir.tune.tune_model import TuneReport

_NOISY = 0.2  # of the time itself: what a busy machine adds


@expanded(options=compile_fields)
def tune(
    model: a.Model,
    *,
    output: Annotated[
        Path, a.option("FILE", "File of records; one that is there is added to.", "-o", "--output")
    ] = Path("tuning.json"),
    options: Fields,
    rounds: Annotated[int, a.option("N", "Measurements per tile and race, at least 5.", max=1_000_000)] = 20,
    minutes: Annotated[float | None, a.option("M", "Begin no measurement after so long. Default: do all.")] = None,
    again: Annotated[bool, a.flag("Measure again what is recorded already.", "--again")] = False,
    threads: a.Threads = None,
    jobs: a.Jobs = None,
    no_cache: a.NoCache = False,
    json: a.Json = False,
) -> None:
    """Measure tiles of matrix products on this machine, and record those that beat the default ones.

    `inferir compile --tuning` uses the records. Interrupted, the next run goes on where this one stopped.
    """
    extras.require("tune", "compile")
    from inferir.cli.console import progress_bars
    from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
    from inferir.compile.compiler import CompileOptions
    from inferir.tune.tune_model import TuneOptions, tune_model

    how = TuneOptions(rounds=rounds, minutes=minutes, again=again, threads=threads, jobs=jobs)
    cache = CompileCache.from_env(CacheOptions(enabled=not no_cache))
    with progress_bars() as progress:
        report = tune_model(model, output, CompileOptions(**options), how, cache=cache, progress=progress)
    if json:
        print_json(_as_json(report))
    else:
        _print(model, report)


def _as_json(report: TuneReport) -> dict[str, Any]:
    import msgspec

    return {
        "records": str(report.path),
        "model": report.model,
        "target": report.target.name,
        "threads": report.threads,
        "measured": [msgspec.to_builtins(r) for r in report.measured],
        "known": [msgspec.to_builtins(r) for r in report.known],
        "left": report.left,
        "seconds": report.seconds,
    }


def _print(model: str, report: TuneReport) -> None:
    tuned = sum(r.tile is not None for r in report.records)
    done = len(report.records)
    found = f"{count(done, 'product')}, {tuned} with another tile than the default"
    lines = [f"{report.path}: {found}; {len(report.measured)} measured now, in {seconds(report.seconds)}."]
    noisy = sum(r.spread > _NOISY * r.default_seconds for r in report.records)
    if noisy:
        lines.append(f"The times of {noisy} spread by more than a fifth: an idle machine may find more.")
    if report.left:
        lines.append(f"{count(report.left, 'product')} left: the same command goes on with them.")
    if tuned:
        lines.append(f"Use it: inferir compile {model} -o ART --tuning {report.path}")
    columns = ("product", "rows", "default", "tuned", "per row", "was")
    parts = [plain("\n".join(lines))]
    if done:
        title = f"Tiles (rows, panel, blocks) on {count(report.threads, 'thread')}"
        parts.insert(0, table(title, columns, map(_row, report.records), right=("rows", "per row", "was")))
    show(*parts)


def _row(record: TuningRecord) -> tuple[str, str, str, str, str, str]:
    key = record.key
    rows = str(key.lo) if key.lo == key.most else f"{key.lo}-{key.most}"
    found = ("default held", _micro(record.default_seconds), "")
    if record.tile is not None:
        found = (_tile(record.tile), _micro(record.seconds), _micro(record.default_seconds))
    return f"{key.k} to {key.n} {key.dtype}", rows, _tile(record.default), *found


def _tile(tile: dict[str, int]) -> str:
    return ", ".join(map(str, tile.values()))


def _micro(value: float) -> str:
    return f"{value * 1e6:,.1f} µs"
