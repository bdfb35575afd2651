"""`inferir profile ART`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from inferir.cli import arguments as a
from inferir.cli.console import plain, print_json, show, table
from inferir.ir.errors import InferirError
from inferir.ir.system import extras
from inferir.ir.system.quantities import count
from inferir.ir.system.text_file import write_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from inferir.profile.kernel_table import KernelRow, KindTable
    from inferir.profile.machine_limits import MachineLimits
    from inferir.profile.profile_artifact import ProfileReport

_COLUMNS = ("kernel", "calls", "ms", "share", "weights MB", "KV MB", "other MB", "GB/s", "GFLOP/s", "of its limit")
_EMPTY = ("",) * 6


def profile(
    artifact: a.Artifact,
    output: Annotated[
        Path | None, a.option("FILE", "Write a Chrome trace in JSON, for ui.perfetto.dev.", "-o", "--output")
    ] = None,
    prompt_tokens: Annotated[int, a.option("N", "Tokens of each prompt.", min=1)] = 128,
    batch: Annotated[int, a.option("N", "Sequences that run at once.", min=1)] = 1,
    steps: Annotated[int, a.option("N", "Decode steps that each sequence makes.", min=1, max=10_000)] = 16,
    temperature: Annotated[
        float, a.option("X", "Above 0, tokens are drawn from logits; 0 finds the most likely one without.", min=0)
    ] = 0.0,
    repeats: Annotated[int, a.option("N", "Runs with and without a recorder.", min=1, max=1000)] = 3,
    top: Annotated[int, a.option("N", "Show the N slowest kernels of each kind of step.", min=1)] = 10,
    threads: a.Threads = None,
    kv_cache_memory: Annotated[
        str | None, a.option("SIZE", 'KV-cache memory, such as "512MiB". Default: half the free memory.')
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, a.option("N", "Tokens per step at most. Default: the artifact's limit, 256 among several requests.")
    ] = None,
    html: Annotated[Path | None, a.option("FILE", "Also write a page with the tables and a roofline.")] = None,
    json: a.Json = False,
) -> None:
    """Show where the time of prefill and decode steps goes, and how far each kernel is from the machine's limits."""
    extras.require("profile", "compile")
    for option, file in (("--output", output), ("--html", html)):
        if file is not None and not file.absolute().parent.is_dir():
            raise InferirError(f"{option}: {file.parent} is not a folder")
    from inferir.profile.profile_artifact import profile_artifact
    from inferir.profile.step_runs import Shapes
    from inferir.runtime.engine.engine_options import EngineOptions

    options = EngineOptions(
        kv_cache_memory=kv_cache_memory,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=None,
        threads=threads,
        enable_prefix_caching=False,
    )
    report = profile_artifact(artifact, Shapes(prompt_tokens, batch, steps, temperature), options, repeats=repeats)
    if output is not None:
        write_file(output, report.trace())
    if html is not None:
        from inferir.profile.profile_page import profile_page

        write_file(html, profile_page(report).encode("utf-8", "backslashreplace"))
    if json:
        print_json(_as_json(report, top, output))
    else:
        show(*_parts(report, top), plain(_notes(report, output, html)))


def _parts(report: ProfileReport, top: int) -> list[RenderableType]:
    limits = report.limits
    steps = [
        (
            t.kind,
            str(t.steps),
            f"{t.tokens / t.steps:,.1f}",
            f"{1e3 * t.seconds / t.steps:,.3f}",
            f"{1e3 * t.recorded / t.steps:,.3f}",
            f"{1e3 * t.unrecorded / t.steps:,.3f}",
            f"{t.ratio:.3f}",
            f"{100 * t.parts:.1f} %",
        )
        for t in report.tables
    ]
    heads = ("steps", "count", "tokens each", "ms", "median ms", "unrecorded", "ratio", "sum of parts")
    title = f"{report.artifact}, {count(report.threads, 'thread')}"
    parts: list[RenderableType] = [table(title, heads, steps, right=heads[1:])]
    for t in report.tables:
        kernels = [_kernel_row(row, t, limits) for row in t.kernels[:top]]
        rest = t.kernels[top:]
        if rest:
            seconds = sum(row.seconds for row in rest)
            name, calls = f"{count(len(rest), 'kernel')} more", sum(row.calls for row in rest)
            kernels.append((name, f"{calls:,}", *_time(seconds, t), *_EMPTY))
        host = [(f"host: {name}", "", *_time(seconds, t), *_EMPTY) for name, seconds in t.phases.items()]
        title = f"{t.kind} steps: {count(t.steps, 'step')} of {t.tokens / t.steps:,.1f} tokens"
        parts.append(table(title, _COLUMNS, [*kernels, *host], right=_COLUMNS[1:]))
    return parts


def limits_text(limits: MachineLimits) -> str:
    """The limits in a line."""
    memory, cache, flops = limits.memory / 1e9, limits.cache / 1e9, limits.flops / 1e9
    return f"{memory:.1f} GB/s from memory, {cache:.1f} GB/s from the cache, {flops:.0f} GFLOP/s"


def _kernel_row(row: KernelRow, of: KindTable, limits: MachineLimits) -> tuple[str, ...]:
    work = row.work
    bound = row.bound(limits)
    moved = (work.weights, work.kv_read + work.kv_written, work.activations)
    sizes = [f"{n / 1e6:,.2f}" if n else "" for n in moved]
    rates = [f"{n / row.seconds / 1e9:,.1f}" if n and row.seconds else "" for n in (work.moved, work.flops)]
    share = f"{bound} {row.of_limit(limits):.0%}" if bound else ""
    return (row.kernel, f"{row.calls:,}", *_time(row.seconds, of), *sizes, *rates, share)


def _time(seconds: float, of: KindTable) -> tuple[str, str]:
    return f"{1e3 * seconds:,.3f}", f"{seconds / of.seconds:.1%}"


def _notes(report: ProfileReport, output: Path | None, html: Path | None) -> str:
    lines = [
        f"The machine does {limits_text(report.limits)}.",
        "A kernel's ms, MB and calls are those of all steps of its kind together.",
        "ratio: steps with a recorder to steps without, each by its median.",
    ]
    if output is not None:
        lines.append(f"{output}: {count(len(report.recording.steps), 'step')}; open it in https://ui.perfetto.dev")
    if report.recording.cut:
        lines.append(f"{report.recording.cut}; {count(report.recording.missed, 'step')} followed.")
    if html is not None:
        lines.append(f"{html}: the tables and a roofline.")
    return "\n".join(lines)


def _as_json(report: ProfileReport, top: int, output: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    limits = report.limits
    return {
        "artifact": str(report.artifact),
        "model": report.manifest.model.name,
        "target": report.manifest.target.name,
        "threads": report.threads,
        "shapes": asdict(report.shapes),
        "limits": {"memory_bytes": limits.memory, "cache_bytes": limits.cache, "flops": limits.flops},
        "trace": None if output is None else str(output),
        "cut": report.recording.cut,
        "kinds": [
            {
                "kind": t.kind,
                "steps": t.steps,
                "tokens": t.tokens,
                "seconds": t.seconds,
                "median_seconds": t.recorded,
                "unrecorded_seconds": t.unrecorded,
                "ratio": t.ratio,
                "sum_of_parts": t.parts,
                "host_seconds": t.phases,
                "kernels": [
                    {
                        "kernel": row.kernel,
                        "calls": row.calls,
                        "seconds": row.seconds,
                        "share": row.seconds / t.seconds,
                        **asdict(row.work),
                        "bound_by": row.bound(limits) or None,
                        "of_limit": row.of_limit(limits) if row.bound(limits) else None,
                    }
                    for row in t.kernels[:top]
                ],
            }
            for t in report.tables
        ],
    }
