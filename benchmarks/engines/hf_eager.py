"""Hugging Face transformers in eager mode: `python -m benchmarks.engines.hf_eager MODEL [dtype]`.

MODEL is a model folder or a GGUF file, which is dequantised.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.engines.protocol import Run, serve

STARTED = time.time()


def load() -> Run:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    path = Path(sys.argv[1])
    dtype = getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "bfloat16")
    if path.suffix == ".gguf":
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),
            attn_implementation="eager",
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype, attn_implementation="eager")
    model.train(False)

    def run(prompts: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(prompts)
        with torch.no_grad():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )

    return run


if __name__ == "__main__":
    serve(load, STARTED)
