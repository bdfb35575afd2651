"""vLLM on the CPU, through its `LLM` class."""

from __future__ import annotations

import os
import time

from benchmarks.engines.protocol import Measure, options, serve, timed

STARTED = time.time()


def load() -> tuple[Measure, str]:
    for name, value in {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }.items():
        os.environ.setdefault(name, value)
    import vllm

    given = options()
    llm = vllm.LLM(
        given["model"],
        dtype=given["dtype"],
        max_model_len=given["max_tokens"],
        max_num_seqs=max(64, given["max_sequences"]),
        enable_prefix_caching=False,
    )

    def run(prompts: list[list[int]], tokens: int) -> None:
        settings = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        assert all(len(o.outputs[0].token_ids) == tokens for o in outputs)

    return timed(run), f"vllm {vllm.__version__}"


if __name__ == "__main__":
    serve(load, STARTED)
