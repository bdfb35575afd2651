"""Inferir: `model` is an artifact."""

from __future__ import annotations

import time

from benchmarks.engines.protocol import Measure, options, serve, timed

STARTED = time.time()


def load() -> tuple[Measure, str]:
    import inferir
    from inferir import LLM, SamplingParams

    llm = LLM(options()["model"], enable_prefix_caching=False)  # workloads repeat prompts

    def run(prompts: list[list[int]], tokens: int) -> None:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
        assert all(len(o.token_ids) == tokens for o in outputs)

    return timed(run), inferir.__version__


if __name__ == "__main__":
    serve(load, STARTED)
