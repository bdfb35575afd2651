"""Where the time of a decode step goes: the share of scheduling, inputs, sampling and output.

    python -m benchmarks.step_profile ARTIFACT [--sequences 64] [--steps 100]

Runs sequences that all decode, half of them greedy and half drawn with top-k and top-p, through the engine, with a
timer around each phase. Sampling is what the draw's kernel takes inside the step program, by its own time stamps; the
rest of the program is the model. Medians over the steps. Writes `step_profile.json` and draws `step_profile.png`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOST = ("schedule", "inputs", "sampling", "output")


class Phases:
    """Seconds per phase and step, collected by wrapping the engine's parts."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        self._wrap(engine.scheduler, "schedule", "schedule")
        self._wrap(engine.scheduler, "complete", "schedule")
        self._wrap(engine.batch, "prepare", "inputs")
        self._wrap(engine._scores, "prepare", "inputs")
        self._wrap(engine, "_mask", "inputs")
        self._wrap(engine._delivery, "deliver", "output")
        self._profile(engine.executor)

    def step(self) -> None:
        """Run one step; its phases and the rest (`other`) sum to its wall time."""
        self._now = dict.fromkeys((*HOST, "model"), 0.0)
        start = time.perf_counter()
        self.engine.step()
        total = time.perf_counter() - start
        self._now["other"] = total - sum(self._now.values())
        self.steps.append(self._now)

    def _wrap(self, owner: Any, name: str, phase: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = inner(*arguments)
            self._now[phase] += time.perf_counter() - start
            return result

        setattr(owner, name, timed)

    def _profile(self, executor: Any) -> None:
        """Have the step program stamp its operations, and split its time between sampling and the model."""

        def run(step: Any) -> Any:
            descriptor, counts = step
            program = executor.program(descriptor)
            start = time.perf_counter()
            cycles = program.profile(counts)
            seconds = time.perf_counter() - start
            kernels = program.bucket.kernels
            drawn = sum(
                int(c)
                for c, call in zip(cycles, program.bucket.program, strict=True)
                if kernels[call.kernel].name.endswith("draw")
            )
            share = drawn / max(1, int(cycles.sum()))
            self._now["sampling"] += seconds * share
            self._now["model"] += seconds * (1 - share)
            return executor.outputs(counts)

        executor.wait = run


def measure(artifact: str, sequences: int, steps: int) -> dict[str, float]:
    """Median seconds per phase of a decode step with `sequences` running requests."""
    from inferir import LLM, SamplingParams

    llm = LLM(artifact, max_num_seqs=sequences)
    engine = llm.engine
    rng = random.Random(0)
    for i in range(sequences):
        prompt = [rng.randrange(100, 10000) for _ in range(32)]
        if i % 2:
            params = SamplingParams(
                max_tokens=steps + 8, temperature=0.8, top_k=50, top_p=0.95, seed=i, ignore_eos=True
            )
        else:
            params = SamplingParams(max_tokens=steps + 8, temperature=0.0, ignore_eos=True)
        engine.queue(engine.requests.make(prompt, params))
    while engine.stats().running < sequences or engine.stats().waiting:
        engine.step()
    for _ in range(5):
        engine.step()
    phases = Phases(engine)
    for _ in range(steps):
        if engine.stats().running < sequences:
            break
        phases.step()
    return {name: statistics.median(s[name] for s in phases.steps) for name in phases.steps[0]}


def plot(medians: dict[str, float], sequences: int, path: Path) -> None:
    """One stacked bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 1.8))
    left, total = 0.0, sum(medians.values())
    for i, (name, seconds) in enumerate(medians.items()):
        axis.barh(
            [f"{sequences} sequences"],
            [1000 * seconds],
            left=left,
            color=f"C{i}",
            label=f"{name} {100 * seconds / total:.1f} %",
        )
        left += 1000 * seconds
    axis.set_xlabel("milliseconds")
    axis.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    medians = measure(given.artifact, given.sequences, given.steps)
    total = sum(medians.values())
    for name, seconds in medians.items():
        print(f"{name:10s} {1000 * seconds:8.3f} ms {100 * seconds / total:6.2f} %")
    share = sum(medians[n] for n in HOST) / total
    print(f"{', '.join(HOST)} together: {100 * share:.2f} % of a step of {1000 * total:.2f} ms")
    given.out.mkdir(parents=True, exist_ok=True)
    record = {"sequences": given.sequences, "seconds": medians, "host_share": share}
    (given.out / "step_profile.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot(medians, given.sequences, given.out / "step_profile.png")


if __name__ == "__main__":
    main()
