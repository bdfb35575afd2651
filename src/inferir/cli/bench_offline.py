"""What `inferir bench latency` and `throughput` run: `LLM` in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from inferir.cli.bench_metrics import random_prompts
from inferir.ir.errors import InferirError

if TYPE_CHECKING:
    from inferir.api.llm import LLM, RequestOutput


def fitting_prompts(llm: LLM, seed: int, count: int, input_len: int, output_len: int) -> list[list[int]]:
    """Random prompts. Raises `InferirError` if they are too long."""
    tokens, most = input_len + output_len, llm.engine.limits.max_model_len
    if tokens > most:
        raise InferirError(f"requests of {tokens} tokens, prompt and answer, are too long for the artifact ({most})")
    return random_prompts(seed, count, input_len, llm.manifest.model.vocab_size)


def generate(llm: LLM, prompts: list[list[int]], output_len: int) -> tuple[float, list[RequestOutput]]:
    """Seconds and answers of `output_len` tokens each. Raises `InferirError` if one is shorter."""
    from inferir.api.llm import SamplingParams

    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - begin
    for out in outputs:
        if len(out.token_ids) != output_len:
            reason = out.outputs[0].error or out.finish_reason
            raise InferirError(f"an answer ended after {len(out.token_ids)} of {output_len} tokens: {reason}")
    return seconds, outputs
