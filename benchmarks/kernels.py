"""Every kernel of an artifact against the limits of the machine, inside real steps: a roofline.

    python -m benchmarks.kernels ARTIFACT [--steps 1,4,16,64,p1024] [--repeats 20]

A step of n sequences (or of a prompt, with `p`) is brought about by the engine and then run again and again, with its
own time stamps after each operation; a kernel's time is the median, over the runs, of the sum over its calls in a step.
So weights come from memory and activations from where the last kernel left them. The limits are measured by kernels
that only stream or only multiply, before and after every few runs, for they change on a shared machine; of these groups
of runs, the one in the middle by the share of its limit is reported. Writes `kernels.json`, draws `kernels.png`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inferir.ir.graph.parser import parse_graph
from inferir.profile.machine_limits import LimitProbe, MachineLimits
from inferir.profile.region_work import Work, does_the_work, region_work, regions_by_digest

CONTEXT = 256  # tokens of each sequence before a decode step
GROUPS = 5  # of runs of a step, each with limits of its own

Group = tuple[MachineLimits, np.ndarray]
"""The larger of the limits before and after some runs of a step, and their seconds [runs, ops]."""


@dataclass(frozen=True)
class Measured:
    """One kernel in one step: its calls, median seconds in all of them, what they have to do, and the bound."""

    step: str
    kernel: str
    calls: int
    seconds: float
    work: Work
    least: float
    bound: str

    @property
    def share_of_limit(self) -> float:
        return self.least / self.seconds


def capture(
    llm: Any, tokens: int, sequences: int, prompt: int, repeats: int, probe: LimitProbe
) -> tuple[Any, Any, list[Group], dict[str, np.ndarray]]:
    """Run `sequences` prompts until a step of `tokens` tokens comes; its bucket, counts, groups of runs, and attention
    items by step input."""
    from inferir import SamplingParams

    executor = llm.engine.executor
    run = executor.wait
    found: list[Any] = []

    def observe(step: Any) -> Any:
        descriptor, counts = step
        if counts.tokens == tokens and counts.rows + counts.argmax == sequences and not found:
            program = executor.program(descriptor)
            run(step)
            groups, limits = [], [probe.measure()]
            for _ in range(GROUPS):
                seconds = np.array([_stamps(program, counts) for _ in range(-(-repeats // GROUPS))])
                limits.append(probe.measure())
                groups.append((_larger(*limits[-2:]), seconds))
            items = {g.items: executor.inputs[g.items].copy() for g in llm.manifest.kv if g.items}
            found.append((program.bucket, counts, groups, items))
        return run(step)

    rng = random.Random(0)
    executor.wait = observe
    try:
        prompts = [[rng.randrange(100, 10000) for _ in range(prompt)] for _ in range(sequences)]
        llm.generate(prompts, SamplingParams(max_tokens=40 + 2 * sequences, temperature=0.0, ignore_eos=True))
    finally:
        executor.wait = run
    if not found:
        raise SystemExit(f"no step of {tokens} tokens came about; is it beyond the artifact's max_num_batched_tokens?")
    return found[0]  # type: ignore[no-any-return]


def _larger(a: MachineLimits, b: MachineLimits) -> MachineLimits:
    return MachineLimits(*map(max, astuple(a), astuple(b)))


def _stamps(program: Any, counts: Any) -> np.ndarray:
    """Seconds of each operation: its cycles, scaled by the wall time of all."""
    start = time.perf_counter()
    cycles = program.profile(counts)
    seconds = time.perf_counter() - start
    return np.asarray(cycles * (seconds / max(1, cycles.sum())))


def measure(llm: Any, step: str, repeats: int, probe: LimitProbe, regions: dict[str, Any]) -> list[Measured]:
    """All kernels of one step, the slowest first."""
    prefill = step.startswith("p")
    n = int(step.removeprefix("p"))
    bucket, counts, groups, items = capture(llm, n, 1 if prefill else n, n if prefill else CONTEXT, repeats, probe)
    columns: dict[int, list[int]] = defaultdict(list)
    for i, call in enumerate(bucket.program):
        columns[call.kernel].append(i)
    work: dict[int, Work] = {}
    for number, ops in sorted(columns.items()):
        kernel = bucket.kernels[number]
        one = region_work(regions[kernel.region], counts, items) if does_the_work(kernel.name) else Work()
        work[number] = sum([one] * len(ops), Work())

    def share(group: Group) -> float:
        least = sum(w.seconds(group[0]) for w in work.values())
        return float(least / np.median(group[1].sum(axis=1)))

    limits, times = sorted(groups, key=share)[len(groups) // 2]
    print(
        f"{step}: limits {limits.memory / 1e9:.0f} GB/s memory, {limits.cache / 1e9:.0f} GB/s cache, "
        f"{limits.flops / 1e9:.0f} GFLOP/s"
    )
    out = []
    for number, ops in columns.items():
        seconds, w = float(np.median(times[:, ops].sum(axis=1))), work[number]
        name = bucket.kernels[number].name.split("_", 1)[1]
        out.append(Measured(step, name, len(ops), seconds, w, w.seconds(limits), w.bound(limits)))
    return sorted(out, key=lambda m: -m.seconds)


def report(measured: list[Measured]) -> str:
    total = sum(m.seconds for m in measured)
    lines = [
        f"{'kernel':28s} {'calls':>5s} {'ms':>8s} {'share':>6s} {'GB/s':>7s} {'GFLOP/s':>8s} {'of limit':>8s}  bound"
    ]
    for m in measured:
        moved = m.work.moved / m.seconds / 1e9
        lines.append(
            f"{m.kernel:28s} {m.calls:5d} {1e3 * m.seconds:8.3f} {m.seconds / total:6.1%} {moved:7.1f} "
            f"{m.work.flops / m.seconds / 1e9:8.1f} {m.share_of_limit:8.2f}  {m.bound}"
        )
    least = sum(m.least for m in measured)
    lines.append(f"{'all':28s} {'':5s} {1e3 * total:8.3f} {'':6s} {'':7s} {'':8s} {least / total:8.2f}")
    return "\n".join(lines)


def plot(measured: list[Measured], limits: MachineLimits, path: Path) -> None:
    """Kernels that multiply, over their arithmetic intensity, under the roof."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.2))
    x = np.logspace(-0.5, 3.5, 200)
    axis.loglog(x, np.minimum(x * limits.memory, limits.flops) / 1e9, "k-", lw=1, label="limit")
    steps = list(dict.fromkeys(m.step for m in measured))
    for i, step in enumerate(steps):
        dots = [m for m in measured if m.step == step and m.work.flops]
        at = [m.work.flops / max(1, m.work.memory) for m in dots]
        axis.loglog(at, [m.work.flops / m.seconds / 1e9 for m in dots], "o", color=f"C{i}", ms=4, label=step)
    axis.set_xlabel("operations per byte from memory")
    axis.set_ylabel("GFLOP/s")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument(
        "--steps", default="1,4,16,64,p1024", help="sequences of a decode step, or p and a prompt length"
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    from inferir import LLM

    llm = LLM(str(given.artifact), enable_prefix_caching=False)
    regions = regions_by_digest(parse_graph((given.artifact / "ir" / "kernels.txt").read_text(encoding="utf-8")))
    everything: list[Measured] = []
    with LimitProbe(llm.engine.executor.threads, llm.manifest.model.dtype, llm.manifest.target) as probe:
        for step in given.steps.split(","):
            measured = measure(llm, step, given.repeats, probe, regions)
            print(report(measured), end="\n\n")
            everything += measured
        limits = probe.measure()
    given.out.mkdir(parents=True, exist_ok=True)
    record = {"limits": asdict(limits), "kernels": [asdict(m) | {"of_limit": m.share_of_limit} for m in everything]}
    (given.out / "kernels.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot(everything, limits, given.out / "kernels.png")


if __name__ == "__main__":
    main()
