"""Whether a module of the captured graph computes what eager's module returned: what the reproducer of a capture runs.

    graph.txt              the module's nodes in the captured graph
    inputs.safetensors     what they read, in a run of the captured graph
    weights.safetensors    their weights
    expected.safetensors   what eager's module returned, in float32

It tells what the recorded graph does; whether a new capture is right, a new bisection tells.
"""

from __future__ import annotations

from pathlib import Path

import torch

from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph

GRAPH, INPUTS, WEIGHTS, EXPECTED = "graph.txt", "inputs.safetensors", "weights.safetensors", "expected.safetensors"


def reproduce(folder: Path) -> int:
    """Run the reproducer in `folder` and say what came out: 1 while the fault is there, else 0."""
    from safetensors.torch import load_file

    graph = parse_graph((folder / GRAPH).read_text(encoding="utf-8"))
    expected = load_file(folder / EXPECTED)
    want, bound = expected["output"].double(), float(expected["bound"])
    with torch.no_grad():
        found = interpret(graph, load_file(folder / INPUTS), load_file(folder / WEIGHTS))
    have = found[graph.output_names[-1]].double().reshape(want.shape)
    share = float((have - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt().clamp_min(1e-30))
    print(f"differs by {share:.2e} of the RMS of eager's output, at most {bound:.2e} is no fault")
    print("fixed" if share <= bound else "FAULT")
    return int(not share <= bound)
