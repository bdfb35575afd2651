"""Greedy tokens and log-probabilities of an artifact beside llama.cpp's server, an independent reference.

    python -m benchmarks.gguf_f32 MODEL.gguf MODEL-f32.gguf
    inferir compile MODEL.gguf -o ART --dtype f32
    python -m benchmarks.gguf_agree MODEL-f32.gguf ART --server 'llama-server -m {model} --port {port} -c {context} …'

Weights, keys and values are float32 on both sides: with quantised weights llama.cpp quantises activations too, which
moves a log-probability by up to 0.3. Exit status 1 unless all prompts agree.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.llama_server import COMMAND, LlamaServer, serving
from inferir import LLM, SamplingParams

STEAM = "The history of the steam engine begins with simple devices. "
LISTED = "- item 1: 3.14\n- item 2: 2.72\n"
CODE = "def add(a, b):\n    return a + b\n\n"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n",
    "1, 2, 3, 4,",
    "Once upon a time, in a small village by the sea,",
    "Die Hauptstadt von Deutschland ist",
    "SELECT name, COUNT(*) FROM users WHERE",
    "To be, or not to be,",
    "Water boils at 100 degrees Celsius, which is",
    "| year | sales |\n|------|-------|\n| 2021 | 10 |\n| 2022 |",
    "Les fruits et légumes sont",
    '{"name": "Ada", "born": 1815, "city":',
    "Q: What is 7 times 8?\nA:",
    STEAM * 5 + "Later",
    LISTED * 10 + "- item 3:",
    CODE * 12 + "def subtract(a, b):",
    STEAM * 20 + "In the nineteenth century",
    STEAM * 40 + "It was",
    LISTED * 60 + "- item 3:",
    STEAM * 100 + "In summary,",
    STEAM * 140 + "In the end",
)


def compare(server: LlamaServer, llm: LLM, text: str, count: int) -> tuple[int, bool, int, float]:
    """(prompt tokens, whether both tokenize the text alike, how many greedy tokens are the same, the largest difference
    of their log-probabilities).
    """
    ids = server.tokenize(text)
    alike = list(llm.tokenize(text)) == ids
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=0)
    ours = llm.generate([ids], params)[0].outputs[0]
    theirs = server.greedy(ids, count)
    same, worst = 0, 0.0
    assert ours.logprobs is not None
    for token, step, other in zip(ours.token_ids, ours.logprobs, theirs, strict=True):
        if token != next(iter(other)):
            break
        same += 1
        worst = max(worst, abs(step.logprob - other[token]))
    return len(ids), alike, same, worst


def main() -> int:
    """Print a line per prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file with float32 tensors")
    parser.add_argument("artifact", type=Path, help="artifact compiled with --dtype f32")
    parser.add_argument("--server", default=COMMAND, help="command that serves {model} on {port} with {context} tokens")
    parser.add_argument("--tokens", type=int, default=32, help="greedy tokens per prompt")
    parser.add_argument("--tolerance", type=float, default=0.01, help="accepted difference of a log-probability")
    options = parser.parse_args()
    good = 0
    with serving(options.model, options.server) as server, LLM(options.artifact) as llm:
        for text in PROMPTS:
            length, alike, same, worst = compare(server, llm, text, options.tokens)
            fine = alike and same == options.tokens and worst <= options.tolerance
            good += fine
            shown = f"{length:5} tokens, ids {'equal' if alike else 'DIFFER'}, {same} of {options.tokens} greedy equal"
            print(f"{shown}, log-probabilities within {worst:.4f}{'' if fine else '   <--'}", flush=True)
    print(f"{good} of {len(PROMPTS)} prompts agree")
    return 0 if good == len(PROMPTS) else 1


if __name__ == "__main__":
    sys.exit(main())
