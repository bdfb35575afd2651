"""Hugging Face transformers, eager or (`compile`) with its forward pass through torch.compile.

`model` is a folder or a GGUF file, which is dequantised.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.engines.protocol import Measure, options, serve, timed

STARTED = time.time()


def load() -> tuple[Measure, str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    given = options()
    path = Path(given["model"])
    settings: dict[str, Any] = {"dtype": getattr(torch, given["dtype"])}
    settings["attn_implementation"] = "sdpa" if given["compile"] else "eager"
    if path.suffix == ".gguf":
        dequantise = transformers.GgufConfig(dequantize=True)
        settings |= {"gguf_file": path.name, "quantization_config": dequantise}
        path = path.parent
    model = AutoModelForCausalLM.from_pretrained(str(path), **settings).train(False)
    more: dict[str, Any] = {}
    if given["compile"]:
        model.forward = torch.compile(model.forward, dynamic=True)
        more["cache_implementation"] = "static"

    def run(prompts: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(prompts)
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                **more,
            )
        assert out.shape[1] == ids.shape[1] + tokens

    return timed(run), f"transformers {transformers.__version__}, torch {torch.__version__}"


if __name__ == "__main__":
    serve(load, STARTED)
