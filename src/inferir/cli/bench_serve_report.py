"""What `inferir bench serve` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from inferir.cli import bench_output, console
from inferir.cli.bench_load import Load
from inferir.cli.bench_metrics import METRICS, Record, load_summary, samples
from inferir.ir.system.quantities import count


def report(
    model: str, load: Load, records: Sequence[Record], goals: Mapping[str, float], output: bench_output.Output
) -> None:
    """Print tables or one JSON document, and draw the plot if one is wanted."""
    summary = load_summary(records, goals)
    output.plot(f"Load on {model}", "ms", {n.upper(): v for n, v in samples(records).items()})
    if output.json:
        rate = None if math.isinf(load.rate) else load.rate
        console.print_json({"model": model, "load": {**asdict(load), "rate": rate}, "goals": dict(goals), **summary})
        return
    rows = [
        ("completed requests", summary["completed"]),
        ("failed requests", summary["failed"]),
        ("seconds", summary["duration_s"]),
        ("prompt tokens", summary["prompt_tokens"]),
        ("output tokens", summary["output_tokens"]),
        ("requests/s", summary["request_throughput"]),
        ("output tokens/s", summary["output_throughput"]),
        ("total tokens/s", summary["total_throughput"]),
        ("goodput, requests/s", summary["goodput"]),
    ]
    lengths = f"{load.prefix_len + load.input_len} + {load.output_len} tokens"
    console.show(
        console.plain(f"{model}: {count(load.num_prompts, 'prompt')} of {lengths}"),
        bench_output.values("Load", rows),
        bench_output.spread("Times", [(n.upper(), summary[f"{n}_ms"]) for n in METRICS], "ms"),
        *(console.plain(f"failed {n} times: {e}") for e, n in summary["errors"].items()),
    )
