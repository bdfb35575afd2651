"""`inferir bench latency` and `throughput`: measuring `LLM` in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferir.cli.bench_metrics import distribution, random_prompts
from inferir.ir.errors import InferirError

if TYPE_CHECKING:
    from inferir.api.llm import LLM, RequestOutput


def latency(
    artifact: Path,
    *,
    batch_size: int,
    input_len: int,
    output_len: int,
    repetitions: int,
    warmup: int,
    seed: int,
    **engine: Any,
) -> tuple[dict[str, Any], list[float]]:
    """Time batches of one size, each with other prompts. Returns the summary and the seconds of each repetition."""
    from inferir.api.llm import LLM

    with LLM(artifact, max_num_seqs=batch_size, enable_prefix_caching=False, **engine) as llm:
        _check_length(llm, input_len + output_len)
        vocab = llm.manifest.model.vocab_size
        prompts = random_prompts(seed, batch_size * (warmup + repetitions), input_len, vocab)
        times = []
        for number in range(warmup + repetitions):
            batch = prompts[number * batch_size : (number + 1) * batch_size]
            times.append(_generate(llm, batch, output_len)[0])
    times = times[warmup:]
    spread = distribution(times)
    return {
        "model": llm.manifest.model.name,
        "batch_size": batch_size,
        "input_len": input_len,
        "output_len": output_len,
        "repetitions": repetitions,
        "seconds": spread,
        "output_throughput": batch_size * output_len / spread["mean"],
    }, times


def throughput(
    artifact: Path, *, num_prompts: int, input_len: int, output_len: int, seed: int, **engine: Any
) -> tuple[dict[str, Any], list[float]]:
    """Time many prompts given at once. Returns the summary and each request's seconds from start to end."""
    from inferir.api.llm import LLM

    with LLM(artifact, enable_prefix_caching=False, **engine) as llm:
        _check_length(llm, input_len + output_len)
        prompts = random_prompts(seed, num_prompts + 1, input_len, llm.manifest.model.vocab_size)
        _generate(llm, prompts[:1], output_len)
        seconds, outputs = _generate(llm, prompts[1:], output_len)
    prompt, output = num_prompts * input_len, sum(len(o.token_ids) for o in outputs)
    timings = [o.outputs[0].timing for o in outputs]
    return {
        "model": llm.manifest.model.name,
        "num_prompts": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "seconds": seconds,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "request_throughput": num_prompts / seconds,
        "output_throughput": output / seconds,
        "total_throughput": (prompt + output) / seconds,
    }, [t.finished - t.arrival for t in timings if t.finished is not None]


def _check_length(llm: LLM, tokens: int) -> None:
    most = llm.engine.limits.max_model_len
    if tokens > most:
        raise InferirError(f"requests of {tokens} tokens, prompt and answer, are too long for the artifact ({most})")


def _generate(llm: LLM, prompts: list[list[int]], output_len: int) -> tuple[float, list[RequestOutput]]:
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
