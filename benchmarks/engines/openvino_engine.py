"""OpenVINO GenAI with continuous batching. `model` is a GGUF file of a type that it reads (not BF16), or a folder in
its own format; `dtype` has no effect: it computes in bfloat16 where the processor can.
"""

from __future__ import annotations

import time

from benchmarks.engines.protocol import Measure, options, serve, timed

STARTED = time.time()


def load() -> tuple[Measure, str]:
    import numpy
    import openvino
    import openvino_genai

    given = options()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = max(64, given["max_sequences"])
    scheduler.enable_prefix_caching = False
    pipe = openvino_genai.ContinuousBatchingPipeline(given["model"], scheduler, "CPU")

    def run(prompts: list[list[int]], tokens: int) -> None:
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = tokens
        settings.ignore_eos = True
        settings.do_sample = False
        inputs = [openvino.Tensor(numpy.array([ids], dtype=numpy.int64)) for ids in prompts]
        outputs = pipe.generate(inputs, [settings] * len(inputs))
        assert all(len(o.m_generation_ids[0]) == tokens for o in outputs)

    return timed(run), f"openvino-genai {openvino_genai.__version__}"


if __name__ == "__main__":
    serve(load, STARTED)
