"""Greedy tokens and log-probabilities of an artifact beside llama.cpp's server, an independent reference.

    python -m benchmarks.gguf_f32 MODEL.gguf MODEL-f32.gguf
    inferir compile MODEL.gguf -o ART --dtype f32
    python -m benchmarks.gguf_agree MODEL-f32.gguf ART --server 'llama-server -m {model} --port {port} -c {context} …'

Weights, keys and values are float32 on both sides: with quantised weights llama.cpp quantises activations too, which
moves a log-probability by up to 0.3. The ids that end a text are banned on both sides, so that texts are equally long.
Exit status 1 unless all prompts agree.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Agreement:
    """One prompt: its tokens, whether both tokenize the text alike, how many greedy tokens are the same, the largest
    difference of their log-probabilities, and how far apart the other program holds the two tokens that differ first.
    """

    length: int
    alike: bool
    same: int
    worst: float
    gap: float

    def holds(self, count: int, tolerance: float) -> bool:
        """Whether the programs agree, up to the end of a text or the choice between two equally likely tokens."""
        return self.alike and self.worst <= tolerance and (self.same == count or self.gap <= tolerance)

    def text(self, count: int) -> str:
        shown = (
            f"{self.length:5} tokens, ids {'equal' if self.alike else 'DIFFER'}, {self.same} of {count} greedy equal"
        )
        tie = f" (the next two are {self.gap:.4f} apart)" if self.same < count else ""
        return f"{shown}{tie}, log-probabilities within {self.worst:.4f}"


def compare(server: LlamaServer, llm: LLM, text: str, count: int) -> Agreement:
    """Continue a text with both programs."""
    ids = server.tokenize(text)
    alike = list(llm.tokenize(text)) == ids
    ends = llm.manifest.model.eos_token_ids
    banned = dict.fromkeys(ends, -100.0)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=0, logit_bias=banned)
    ours = llm.generate([ids], params)[0].outputs[0]
    theirs = server.greedy(ids, count, top=5, banned=ends)
    same, worst = 0, 0.0
    assert ours.logprobs is not None
    for token, step, other in zip(ours.token_ids, ours.logprobs, theirs, strict=True):
        first = next(iter(other))
        if token != first:
            return Agreement(len(ids), alike, same, worst, abs(other[first] - other.get(token, -math.inf)))
        same += 1
        worst = max(worst, abs(step.logprob - other[token]))
    return Agreement(len(ids), alike, same, worst, 0.0)


def main() -> int:
    """Print a line per prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file with float32 tensors")
    parser.add_argument("artifact", type=Path, help="artifact compiled with --dtype f32")
    parser.add_argument("--server", default=COMMAND, help="command that serves {model} on {port} with {context} tokens")
    parser.add_argument("--first", type=int, default=len(PROMPTS), help="only the first so many prompts")
    parser.add_argument("--tokens", type=int, default=32, help="greedy tokens per prompt")
    parser.add_argument("--tolerance", type=float, default=0.01, help="accepted difference of a log-probability")
    options = parser.parse_args()
    good = 0
    with serving(options.model, options.server) as server, LLM(options.artifact) as llm:
        for text in PROMPTS[: options.first]:
            found = compare(server, llm, text, options.tokens)
            fine = found.holds(options.tokens, options.tolerance)
            good += fine
            print(f"{found.text(options.tokens)}{'' if fine else '   <--'}", flush=True)
    print(f"{good} of {options.first} prompts agree")
    return 0 if good == options.first else 1


if __name__ == "__main__":
    sys.exit(main())
