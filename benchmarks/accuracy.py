"""Accuracy over long prompts: greedy tokens of a float32 artifact, and the divergence of a bfloat16 one.

    python -m benchmarks.accuracy MODEL --f32 ARTIFACT --bf16 ARTIFACT [--tokens 128] [--out build/accuracy.json]

MODEL is the same model for transformers: a folder or a GGUF file. 20 prompts of 1 to 1,500 tokens are cut from the
project's own pages. For float32, greedy ids must equal those of eager transformers; a first difference where the two
best logits of eager are closer than 1e-4 is reported and excused. For bfloat16, the mean KL divergence from eager
float32 is compared with that of eager bfloat16 over all positions of the prompts. Exit status 1 if either fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from inferir import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 64, 100, 150, 200, 300, 500, 512, 513, 600, 900, 1200, 1500)
TIE = 1e-4
MARGIN = 1.05


def load_eager(path: Path, dtype: torch.dtype) -> Any:
    """The model in transformers, with eager attention."""
    from transformers import AutoModelForCausalLM, GgufConfig

    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "eager"}
    if path.suffix == ".gguf":
        options |= {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}
        path = path.parent
    return AutoModelForCausalLM.from_pretrained(str(path), **options).train(False)


def prompts(llm: LLM) -> list[list[int]]:
    """Token ids of pieces of the documentation."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs").glob("*.md")))
    ids = llm.tokenize(text, add_special_tokens=False)
    return [ids[start : start + n] for i, n in enumerate(LENGTHS) for start in [(i * 337) % (len(ids) - n - 1)]]


def eager_greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy ids, and the distance between the two best logits at each."""
    out: list[int] = []
    gaps: list[float] = []
    cache: Any = None
    step = torch.tensor([prompt])
    with torch.no_grad():
        while len(out) < count:
            answer = model(input_ids=step, use_cache=True, past_key_values=cache)
            cache = answer.past_key_values
            best = answer.logits[0, -1].float().topk(2)
            out.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            step = torch.tensor([out[-1:]])
    return out, gaps


def check_greedy(artifact: Path, model_path: Path, count: int) -> tuple[dict[str, Any], bool]:
    """Compare greedy continuations, all prompts together in one engine against each alone in eager."""
    with LLM(artifact) as llm:
        texts = prompts(llm)
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        ours = [list(o.token_ids) for o in llm.generate(texts, params)]
    model = load_eager(model_path, torch.float32)
    differences = []
    for prompt, got in zip(texts, ours, strict=True):
        want, gaps = eager_greedy(model, prompt, count)
        if got != want:
            at = next(i for i in range(count) if got[i] != want[i])
            differences.append({"prompt_tokens": len(prompt), "position": at, "gap": gaps[at]})
        print(f"greedy, {len(prompt)} tokens: {'equal' if got == want else 'differs'}", file=sys.stderr)
    excused = [d for d in differences if d["gap"] < TIE]
    record = {"prompts": len(texts), "tokens": count, "differences": differences, "excused": len(excused)}
    return record, len(excused) == len(differences)


def divergence(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """KL(want || got) at every position."""
    out = []
    for i in range(0, want.shape[0], 128):
        p, q = (torch.log_softmax(x[i : i + 128].double(), -1) for x in (want, got))
        out.append((p.exp() * (p - q)).sum(-1))
    return torch.cat(out)


def check_divergence(artifact: Path, model_path: Path) -> tuple[dict[str, Any], bool]:
    """Mean KL of the artifact and of eager bfloat16, both from eager float32."""
    exact, half = load_eager(model_path, torch.float32), load_eager(model_path, torch.bfloat16)
    ours, theirs, same = [], [], []
    with LLM(artifact) as llm:
        for prompt in prompts(llm):
            logits = torch.from_numpy(llm.logits([prompt])[0])
            with torch.no_grad():
                want, other = (m(input_ids=torch.tensor([prompt])).logits[0].float() for m in (exact, half))
            ours.append(divergence(want, logits))
            theirs.append(divergence(want, other))
            same.append((want.argmax(-1) == logits.argmax(-1)).float())
            print(f"divergence, {len(prompt)} tokens: {ours[-1].mean():.2e}", file=sys.stderr)
    mine, eager = float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())
    record = {"kl": mine, "eager_bf16_kl": eager, "ratio": mine / eager, "top1": float(torch.cat(same).mean())}
    return record, mine <= eager * MARGIN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--f32", type=Path, help="float32 artifact")
    parser.add_argument("--bf16", type=Path, help="bfloat16 artifact")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record: dict[str, Any] = {}
    good = True
    if given.f32:
        record["greedy"], fine = check_greedy(given.f32, given.model, given.tokens)
        good &= fine
    if given.bf16:
        record["divergence"], fine = check_divergence(given.bf16, given.model)
        good &= fine
    text = json.dumps(record, indent=1)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
