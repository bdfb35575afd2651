"""Whether a stored weight is what its transform makes of the checkpoint: what the reproducer of a weight runs.

transform.txt          the weight's transform; it returns `value`
checkpoint.safetensors the tensors that it reads
stored.safetensors     the weight as the artifact has it
"""

from __future__ import annotations

from pathlib import Path

import torch

from inferir.ir.contract.manifest import TensorRecord
from inferir.ir.graph.dtypes import from_torch
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph
from inferir.verify.bisect_weights import compare_weight

TRANSFORM, CHECKPOINT, STORED = "transform.txt", "checkpoint.safetensors", "stored.safetensors"


def reproduce(folder: Path) -> int:
    """Run the reproducer in `folder` and say what came out: 1 while the fault is there, else 0."""
    from safetensors.torch import load_file

    transform = parse_graph((folder / TRANSFORM).read_text(encoding="utf-8"))
    with torch.no_grad():
        want = interpret(transform, {}, load_file(folder / CHECKPOINT))["value"].contiguous()
    ((name, have),) = load_file(folder / STORED).items()
    record = TensorRecord(file="", offset=0, nbytes=0, dtype=from_torch(have.dtype), shape=tuple(have.shape))
    wrong = compare_weight(name, record, have, want)
    print(f"weight {name}: {'all elements are as expected' if wrong is None else wrong.measured}")
    print("fixed" if wrong is None else "FAULT")
    return int(wrong is not None)
