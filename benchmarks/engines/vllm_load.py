"""The load generator of `vllm bench serve`, kept in one process, since its imports take many seconds.

It speaks the line protocol of the engines; `model` is the folder of the tokenizer. A workload is

    {"url": text, "model": name, "concurrency": n, "prompts": n, "input": tokens, "output": tokens, "prefix": tokens,
     "seed": n}

and its result {"throughput": output tokens per second, "ttft": ms, "tpot": ms, "failed": requests}, means both.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.engines.protocol import Measure, options, serve

STARTED = time.time()


def arguments(work: dict[str, Any], tokenizer: str) -> list[str]:
    """Of `vllm bench serve`."""
    given = {
        "backend": "openai",
        "base-url": work["url"],
        "endpoint": "/v1/completions",
        "model": work["model"],
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-input-len": work["input"],
        "random-output-len": work["output"],
        "random-prefix-len": work["prefix"],
        "num-prompts": work["prompts"],
        "max-concurrency": work["concurrency"],
        "seed": work["seed"],
        "temperature": 0,
    }
    return [text for name, value in given.items() for text in (f"--{name}", str(value))] + [
        "--ignore-eos",
        "--disable-tqdm",
    ]


def load() -> tuple[Measure, str]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import vllm
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    tokenizer = options()["model"]
    parser = FlexibleArgumentParser()
    add_cli_args(parser)

    def measure(work: dict[str, Any]) -> dict[str, Any]:
        found = main(parser.parse_args(arguments(work, tokenizer)))
        return {
            "throughput": found["output_throughput"],
            "ttft": found["mean_ttft_ms"],
            "tpot": found["mean_tpot_ms"],
            "failed": work["prompts"] - found["completed"],
        }

    return measure, f"vllm bench serve {vllm.__version__}"


if __name__ == "__main__":
    serve(load, STARTED)
