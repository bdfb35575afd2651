"""Inferir: `python -m benchmarks.engines.inferir_engine ARTIFACT`."""

from __future__ import annotations

import sys
import time

from benchmarks.engines.protocol import Run, serve

STARTED = time.time()


def load() -> Run:
    from inferir import LLM, SamplingParams

    llm = LLM(sys.argv[1], enable_prefix_caching=False)  # workloads repeat prompts

    def run(prompts: list[list[int]], tokens: int) -> None:
        llm.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))

    return run


if __name__ == "__main__":
    serve(load, STARTED)
